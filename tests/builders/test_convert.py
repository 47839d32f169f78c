import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from llmc.builders.convert import convert, preflight
from llmc.builders.hf.tokenizer_files import COPIED_FILES, TEMPLATES_FOLDER
from llmc.checkpoint import Checkpoint, CheckpointConfig, Quantization
from llmc.dtypes import numpy_dtype
from llmc.errors import CheckpointError, LlmcError, UnsupportedError
from llmc.log import NullProgress
from llmc.mapping import Mapping
from tests.builders.hf_models import tensor_shapes, tiny_config, tiny_tensors, write_tiny

UP = "model.layers.1.mlp.up_proj.weight"
DOWN = "model.layers.0.mlp.down_proj.weight"


class CountingProgress:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.total = self.done = 0
        self.finished = False

    def start(self, description: str, total: int, unit: str = "bytes") -> None:
        self.total = total

    def advance(self, amount: int) -> None:
        self.done += amount

    def finish(self) -> None:
        self.finished = True


def run(model_dir: Path, output_dir: Path, **choices: Any) -> CheckpointConfig:
    output_dir.mkdir(exist_ok=True)
    defaults: dict[str, Any] = {
        "dtype": None,
        "mapping": Mapping(),
        "quantization": Quantization(),
        "progress": NullProgress(),
        "workers": 2,
    }
    return convert(model_dir, output_dir, **{**defaults, **choices})


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("saved", ["float32", "float16", "bfloat16"])
def test_every_dtype_becomes_every_other(saved: str, dtype: str, tmp_path: Path) -> None:
    config = tiny_config(torch_dtype=saved)
    tensors = tiny_tensors(config, saved)
    model_dir = write_tiny(tmp_path / "model", config, tensors)
    assert run(model_dir, tmp_path / "out", dtype=dtype).dtype == dtype
    file = Checkpoint.open(tmp_path / "out").rank(0)
    wanted = tensors[UP].astype(np.float32).astype(numpy_dtype(dtype))
    assert file.read("transformer.layers.1.mlp.gate.weight").tobytes() == wanted.tobytes()


def test_the_models_dtype_is_kept_by_default(tmp_path: Path) -> None:
    config = tiny_config(torch_dtype="bfloat16")
    model_dir = write_tiny(tmp_path / "model", config, tiny_tensors(config, "bfloat16"))
    assert run(model_dir, tmp_path / "out").dtype == "bfloat16"


def test_w8a16_is_written_in_its_portable_form(tmp_path: Path) -> None:
    model_dir = write_tiny(tmp_path / "model", tiny_config())
    run(model_dir, tmp_path / "plain")
    run(model_dir, tmp_path / "quantized", quantization=Quantization(quant_algo="W8A16"))
    plain, quantized = (tmp_path / name / "rank0.safetensors" for name in ("plain", "quantized"))
    assert plain.read_bytes() == quantized.read_bytes()
    config = json.loads((tmp_path / "quantized/config.json").read_text())
    assert config["quantization"]["quant_algo"] == "W8A16"


def test_a_tied_output_is_a_copy_of_the_embedding(tmp_path: Path) -> None:
    run(write_tiny(tmp_path / "model", tiny_config(tie_word_embeddings=True)), tmp_path / "out")
    file = Checkpoint.open(tmp_path / "out").rank(0)
    np.testing.assert_array_equal(
        file.read("lm_head.weight"), file.read("transformer.vocab_embedding.weight")
    )


def test_shards_and_workers_do_not_change_a_byte(tmp_path: Path) -> None:
    config = tiny_config()
    mapping = Mapping(tp_size=2, pp_size=2)
    whole = write_tiny(tmp_path / "whole", config)
    shards = write_tiny(tmp_path / "shards", config, num_shards=3)
    run(whole, tmp_path / "a", mapping=mapping, workers=1)
    run(shards, tmp_path / "b", mapping=mapping, workers=7)
    names = {path.name for path in (tmp_path / "a").iterdir()}
    assert {f"rank{rank}.safetensors" for rank in range(4)} | {"config.json"} <= names
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_pieces_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_dir = write_tiny(tmp_path / "model", tiny_config())
    mapping = Mapping(tp_size=2)
    run(model_dir, tmp_path / "a", mapping=mapping)
    monkeypatch.setattr("llmc.builders.reading._PIECE_BYTES", 4 * 48 * 3)
    run(model_dir, tmp_path / "b", mapping=mapping)
    for rank in range(2):
        name = f"rank{rank}.safetensors"
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_progress_counts_the_bytes_written(tmp_path: Path) -> None:
    progress = CountingProgress()
    model_dir = write_tiny(tmp_path / "model", tiny_config())
    mapping = Mapping(tp_size=2)
    run(model_dir, tmp_path / "out", mapping=mapping, progress=progress, dtype="float16")
    checkpoint = Checkpoint.open(tmp_path / "out")
    written = sum(i.num_bytes for rank in range(2) for i in checkpoint.rank(rank).infos.values())
    assert progress.done == progress.total == written and progress.finished


def test_tokenizer_and_generation_files_come_along(tmp_path: Path) -> None:
    model_dir = write_tiny(tmp_path / "model", tiny_config())
    text = '{"eos_token_id": 3, "model": {"vocab": {}}}'
    names = [Path(name) for name in COPIED_FILES]
    names += [Path(TEMPLATES_FOLDER, "rag.jinja"), Path(TEMPLATES_FOLDER, "tool_use.jinja")]
    (model_dir / TEMPLATES_FOLDER).mkdir()
    for name in names:
        (model_dir / name).write_text(text)
    (model_dir / "modeling_x.py").write_text("")
    out = tmp_path / "out"
    run(model_dir, out)
    written = {path.relative_to(out) for path in out.rglob("*") if path.is_file()}
    own = (Path("config.json"), Path("hf_config.json"), Path("rank0.safetensors"))
    assert written == {*names, *own}
    assert (out / "hf_config.json").read_bytes() == (model_dir / "config.json").read_bytes()
    for name in names:
        assert (out / name).read_text() == text


def test_token_ids_without_a_generation_config_come_from_the_config(tmp_path: Path) -> None:
    run(write_tiny(tmp_path / "model", tiny_config()), tmp_path / "out")
    written = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert written == {"bos_token_id": 1, "eos_token_id": 2}


@pytest.mark.parametrize(
    ("tensor", "value", "dtype", "message"),
    [
        (UP, np.nan, None, f"{UP}: nan at [5, 7], expected a finite number"),
        (UP, -np.inf, "bfloat16", f"{UP}: -inf at [5, 7], expected a finite number"),
        (DOWN, np.nan, None, f"{DOWN}: nan at [5, 7], expected a finite number"),
        (
            UP,
            70000.0,
            "float16",
            f"{UP}: 70144 at [5, 7], expected at most 65504 as the dtype is float16",
        ),
    ],
)
@pytest.mark.parametrize("tp_size", [1, 2])
def test_a_value_that_cannot_be_converted_is_named_and_nothing_remains(
    tensor: str, value: float, dtype: str | None, message: str, tp_size: int, tmp_path: Path
) -> None:
    config = tiny_config(torch_dtype="bfloat16")
    tensors = tiny_tensors(config, "bfloat16")
    tensors[tensor][5, 7] = value
    model_dir = write_tiny(tmp_path / "model", config, tensors)
    progress = CountingProgress()
    with pytest.raises(CheckpointError) as caught:
        mapping = Mapping(tp_size=tp_size)
        run(model_dir, tmp_path / "out", dtype=dtype, mapping=mapping, progress=progress)
    assert caught.value.message == f"{model_dir}/model.safetensors: {message}"
    assert (dtype == "float16") == ("bfloat16" in caught.value.hint)
    assert list((tmp_path / "out").iterdir()) == [] and progress.finished


def test_the_position_counts_columns_of_the_whole_tensor(tmp_path: Path) -> None:
    config = tiny_config()
    tensors = tiny_tensors(config)
    tensors[DOWN][5, 61] = np.nan  # a column of the second rank
    model_dir = write_tiny(tmp_path / "model", config, tensors)
    with pytest.raises(CheckpointError, match=r"nan at \[5, 61\]"):
        run(model_dir, tmp_path / "out", mapping=Mapping(tp_size=2))


def test_float32_values_above_bfloat16_are_named(tmp_path: Path) -> None:
    config = tiny_config()
    tensors = tiny_tensors(config)
    tensors[UP][0, 0] = np.finfo(np.float32).max
    model_dir = write_tiny(tmp_path / "model", config, tensors)
    with pytest.raises(CheckpointError, match=r"3.40282e\+38 at \[0, 0\].*bfloat16"):
        run(model_dir, tmp_path / "out", dtype="bfloat16")


def test_what_was_there_before_survives_a_failure(tmp_path: Path) -> None:
    config = tiny_config()
    tensors = tiny_tensors(config)
    tensors[UP][0, 0] = np.nan
    (tmp_path / "out").mkdir()
    (tmp_path / "out/note").write_text("mine")
    with pytest.raises(CheckpointError):
        run(write_tiny(tmp_path / "model", config, tensors), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["note"]


@pytest.mark.parametrize(
    ("choices", "error", "reason"),
    [
        ({"mapping": Mapping(tp_size=3)}, UnsupportedError, "valid tp_size: 1, 2, 4"),
        ({"mapping": Mapping(pp_size=3)}, UnsupportedError, "valid pp_size: 1, 2"),
        ({"dtype": "int8"}, UnsupportedError, "dtype 'int8', expected one of float32"),
        (
            {"quantization": Quantization(quant_algo="INT3")},
            UnsupportedError,
            "quant_algo 'INT3', expected one of W8A16",
        ),
        (
            {"quantization": Quantization(kv_cache_quant_algo="INT8")},
            UnsupportedError,
            "no tokenizer.json, which calibration needs",
        ),
    ],
)
def test_choices_are_refused_before_any_work(
    choices: dict[str, Any], error: type[LlmcError], reason: str, tmp_path: Path
) -> None:
    model_dir = write_tiny(tmp_path / "model", tiny_config())
    with pytest.raises(error, match=reason):
        run(model_dir, tmp_path / "out", **choices)
    assert list((tmp_path / "out").iterdir()) == []
    defaults = {"dtype": None, "mapping": Mapping(), "quantization": Quantization()}
    assert any(reason in line for line in preflight(model_dir, **{**defaults, **choices}))


@pytest.mark.parametrize("tp", [2, 4, 6])
def test_heads_that_do_not_split_are_refused_with_the_sizes_that_do(
    tp: int, tmp_path: Path
) -> None:
    """SmolLM2-135M's sizes, known from config.json alone: 9 heads, 3 key-value heads."""
    sizes = {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    }
    (tmp_path / "config.json").write_text(json.dumps(tiny_config() | sizes))

    def reasons(size: int) -> list[str]:
        mapping = Mapping(tp_size=size)
        found = preflight(tmp_path, dtype=None, mapping=mapping, quantization=Quantization())
        return [line for line in found if "tp_size" in line]

    (heads, *_) = reasons(tp)
    expected = f"tp_size {tp} does not divide num_attention_heads 9; valid tp_size: 1, 3"
    assert heads.endswith(expected), heads
    assert reasons(1) == reasons(3) == []


def test_model_and_choices_are_refused_together(tmp_path: Path) -> None:
    config = tiny_config()
    tensors = tiny_tensors(config)
    del tensors[UP]
    model_dir = write_tiny(tmp_path / "model", config, tensors)
    reasons = preflight(
        model_dir, dtype="x", mapping=Mapping(tp_size=3), quantization=Quantization()
    )
    assert any(UP in reason for reason in reasons)
    assert any("tp_size 3" in reason for reason in reasons)
    assert any("dtype 'x'" in reason for reason in reasons)
    with pytest.raises(CheckpointError, match=f"cannot be converted\n  - .*{UP}: missing"):
        run(model_dir, tmp_path / "out")


def test_a_pattern_that_excludes_nothing_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quantization = Quantization(quant_algo="W8A16", exclude_modules=("lm_head", "*.atention.*"))
    model_dir = write_tiny(tmp_path / "model", tiny_config())
    run(model_dir, tmp_path / "out", quantization=quantization)
    assert "'*.atention.*' matches no module" in caplog.text and "'lm_head'" not in caplog.text


@pytest.mark.parametrize(("padding_id", "warned"), [(100, False), (101, True)])
@pytest.mark.parametrize("vocabulary", [{"a": 0, "b": 99}, [["a", 0.0], ["b", 0.0]]])
def test_a_tokenizer_larger_than_the_vocabulary_is_warned_of(
    vocabulary: Any,
    padding_id: int,
    warned: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model_dir = write_tiny(tmp_path / "model", tiny_config())
    padding = {"id": padding_id, "content": "<pad>"}
    tokenizer = {"model": {"vocab": vocabulary}, "added_tokens": [padding]}
    (model_dir / "tokenizer.json").write_text(json.dumps(tokenizer))
    run(model_dir, tmp_path / "out")
    assert ("'<pad>' is 101, but the embedding has 101 rows" in caplog.text) is warned


MEASURE = """
import sys
from pathlib import Path
from llmc.builders.convert import convert
from llmc.checkpoint import Quantization
from llmc.log import NullProgress
from llmc.mapping import Mapping

def peak_bytes():
    # getrusage would count the parent's memory before exec
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

before = peak_bytes()
convert(Path(sys.argv[1]), Path(sys.argv[2]), dtype="float16", mapping=Mapping(tp_size=2),
        quantization=Quantization(), use_parallel_embedding=True, progress=NullProgress(),
        workers=2)
print(peak_bytes() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_memory_does_not_grow_with_the_largest_tensor(tmp_path: Path) -> None:
    """The embedding alone is 192 MiB; two workers hold pieces of 8 MiB in a few copies."""
    config = tiny_config(
        hidden_size=1024, vocab_size=98304, torch_dtype="bfloat16", tie_word_embeddings=True
    )
    shapes = tensor_shapes(config)
    zeros = {name: np.zeros(shape, ml_dtypes.bfloat16) for name, shape in shapes.items()}
    model_dir = write_tiny(tmp_path / "model", config, zeros)
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-c", MEASURE, str(model_dir), str(tmp_path / "out")]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    assert int(done.stdout) < 128 << 20
