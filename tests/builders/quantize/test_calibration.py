"""The layer walk against the whole network, what a kill leaves, and what reaches the rank files."""

import hashlib
import json
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from llmc.builders.calibrate import TorchDecoder
from llmc.builders.convert import convert
from llmc.builders.hf.preflight import examine
from llmc.builders.network import build_network
from llmc.builders.quantize import decoder
from llmc.builders.quantize.calibration import Calibration
from llmc.builders.quantize.decoder import ReadRows, ReadTensor
from llmc.builders.quantize.kernels import KernelDecoder
from llmc.builders.quantize.observers import KvObserver, LinearObserver, Observer, Watch
from llmc.builders.quantize.source import TensorSource
from llmc.builders.quantize.state import State, remove_states
from llmc.builders.quantize.walk import chunked, kv_scale
from llmc.checkpoint import Checkpoint, CheckpointConfig, Quantization
from llmc.errors import LlmcError
from llmc.log import NullProgress
from llmc.mapping import Mapping
from llmc.runtime.batch import Batch
from tests.builders.tiny_hf import write_model
from tests.plugins.interpreter import Rank, run_step

TEXT = " ".join(f"w{(index * 37 + index**2) % 64}" for index in range(400))
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3}


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    return write_model(tmp_path / "model", torch_dtype="bfloat16", **SIZES)


def calibration(tmp_path: Path) -> Calibration:
    return Calibration(
        state_parent=tmp_path, key="k", data=tmp_path / "text.txt", samples=4, max_tokens=32
    )


def make(model_dir: Path, output: Path, algo: str | None, **choices: Any) -> Checkpoint:
    output.mkdir()
    tmp_path = model_dir.parent
    quantization = Quantization.of(
        algo, choices.pop("kv", None), group_size=choices.pop("group", None)
    )
    convert(
        model_dir,
        output,
        dtype="bfloat16",
        mapping=choices.pop("mapping", Mapping()),
        quantization=quantization,
        calibration=calibration(tmp_path),
        progress=NullProgress(),
        workers=1,
        **choices,
    )
    return Checkpoint.open(output)


def digests(checkpoint: Checkpoint) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(checkpoint.directory.iterdir())
    }


def decoders(
    config: CheckpointConfig, read: ReadTensor, read_rows: ReadRows
) -> tuple[KernelDecoder, TorchDecoder]:
    """Return what computes on a CPU, and what does on CUDA, here on the CPU as well."""
    return (
        KernelDecoder(config, read, read_rows),
        TorchDecoder(config, read, read_rows, device="cpu"),
    )


def test_the_walk_sees_what_the_network_computes(model_dir: Path, tmp_path: Path) -> None:
    """Layer by layer, in chunks, both give the logits of the whole network."""
    model, reasons = examine(model_dir)
    assert model is not None and not reasons
    config = CheckpointConfig(arch=model.arch, dtype="float32")
    source = TensorSource(model, "float32")
    generator = np.random.default_rng(0)
    lengths = [20, 7, 13]
    ids = generator.integers(0, 64, size=40).astype(np.int32)
    rank = Rank.make(build_network(config, 0), source.read, num_blocks=3, tokens_per_block=32)
    batch = Batch(
        token_ids=ids,
        positions=np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
        query_start=np.cumsum([0, *lengths], dtype=np.int32),
        context_lens=np.array(lengths, np.int32),
        block_tables=np.arange(3, dtype=np.int32)[:, None],
        logits_rows=np.arange(40, dtype=np.int32),
        prompt_lens=np.array(lengths, np.int32),
    )
    wanted = run_step([rank], batch).numpy()
    for one in decoders(config, source.read, source.read_rows):
        hidden = one.embed(ids, lengths)
        for layer in range(3):
            loaded = one.load(layer)
            # Two chunks, the second of more tokens than the first.
            parts = [loaded.run(hidden[:20], [20], {}), loaded.run(hidden[20:], [7, 13], {})]
            hidden = np.concatenate(parts)
        np.testing.assert_allclose(one.head(hidden), wanted, rtol=1e-3, atol=1e-4)
        one.close()


def test_both_decoders_record_the_same(model_dir: Path) -> None:
    model, _ = examine(model_dir)
    assert model is not None
    config = CheckpointConfig(arch=model.arch, dtype="bfloat16")
    source = TensorSource(model, "bfloat16")
    ids = np.random.default_rng(0).integers(0, 64, size=70).astype(np.int32)
    lengths, seen = [40, 30], []
    for one in decoders(config, source.read, source.read_rows):
        ops = one.parts.layers[0]
        observers: dict[str, Observer] = {"transformer.layers.0.attention": KvObserver()}
        for op in ops:
            if op.plugin == "linear":
                widths = {1: (128,), 2: (256, 256)}[len(op.weights["weight"])]
                columns = (256,) if "qkv" in op.name else widths
                watch = Watch(row_stride=3, keep_hessian=True, columns=columns)
                observers[op.name] = LinearObserver(watch=watch)
        hidden, loaded = one.embed(ids, lengths), one.load(0)
        plain = loaded.run(hidden, lengths, {})
        np.testing.assert_allclose(
            loaded.run(hidden, lengths, observers), plain, rtol=1e-5, atol=1e-5
        )
        seen.append(observers)
        one.close()
    ours, reference = seen
    assert len(ours) == 5
    for name, observer in ours.items():
        other = reference[name]
        if isinstance(observer, LinearObserver) and isinstance(other, LinearObserver):
            assert observer.output_amax() == pytest.approx(other.output_amax(), rel=1e-4), name
            wanted = asdict(other.stats())
            for field, value in asdict(observer.stats()).items():
                np.testing.assert_allclose(value, wanted[field], rtol=1e-3, atol=1e-4)
        else:
            assert isinstance(observer, KvObserver) and isinstance(other, KvObserver)
            assert observer.amax == pytest.approx(other.amax, rel=1e-4) and observer.amax > 0


def test_observers_sum_over_chunks() -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((50, 8), dtype=np.float32)
    y = generator.standard_normal((50, 6), dtype=np.float32)
    observer = LinearObserver(watch=Watch(row_stride=7, keep_hessian=True, columns=(4, 2)))
    for start, stop in ((0, 20), (20, 23), (23, 50)):
        observer.see_input(x[start:stop])
        observer.see_output(y[start:stop])
    stats = observer.stats()
    assert stats.num_tokens == 50
    np.testing.assert_array_equal(stats.rows, x[::7])
    np.testing.assert_array_equal(stats.amax, np.abs(x).max(0))
    np.testing.assert_allclose(stats.mean_abs, np.abs(x).mean(0), rtol=1e-6)
    assert stats.hessian is not None
    np.testing.assert_allclose(stats.hessian, x.T @ x / 50, rtol=1e-5, atol=1e-6)
    assert observer.output_amax() == (float(np.abs(y[:, :4]).max()), float(np.abs(y[:, 4:]).max()))


def test_chunks_hold_whole_sequences() -> None:
    assert list(chunked([1000, 1000, 100, 3000, 5])) == [[1000, 1000], [100], [3000], [5]]


def test_kv_scale_is_of_what_the_cache_holds(model_dir: Path, tmp_path: Path) -> None:
    file = make(model_dir, tmp_path / "out", None, kv="INT8").rank(0)
    model, _ = examine(model_dir)
    assert model is not None
    config = CheckpointConfig(arch=model.arch, dtype="bfloat16")
    source = TensorSource(model, "bfloat16")
    rank = Rank.make(build_network(config, 0), source.read, num_blocks=1, tokens_per_block=32)
    amax = np.zeros(3)
    ids = np.array([int(word[1:]) for word in TEXT.split()], np.int32)[:384].reshape(12, 32)
    for sequence in ids[::3]:
        batch = Batch(
            token_ids=sequence,
            positions=np.arange(32, dtype=np.int32),
            query_start=np.array([0, 32], np.int32),
            context_lens=np.array([32], np.int32),
            block_tables=np.zeros((1, 1), np.int32),
            logits_rows=np.array([31], np.int32),
            prompt_lens=np.array([32], np.int32),
        )
        run_step([rank], batch)
        amax = np.maximum(amax, rank.kv_cache.abs().flatten(1).amax(1).numpy())
    for layer in range(3):
        name = f"transformer.layers.{layer}.attention.kv_cache_scaling_factor"
        assert float(file.read(name)[0]) == pytest.approx(amax[layer] / 127, rel=1e-3)


def test_fp8_kv_is_left_alone_until_it_would_overflow() -> None:
    assert kv_scale(100.0, "FP8") == 1.0
    assert kv_scale(896.0, "FP8") == 2.0


@pytest.mark.parametrize(
    ("algo", "group"),
    [("W8A8_SQ_PER_TENSOR_PLUGIN", None), ("W4A16_AWQ", 64), ("FP8", None), ("NVFP4", None)],
)
def test_ranks_hold_the_slices_of_the_whole(
    algo: str, group: int | None, model_dir: Path, tmp_path: Path
) -> None:
    """Two by two ranks joined again are the unsplit checkpoint, every tensor."""
    whole = make(model_dir, tmp_path / "whole", algo, group=group, kv="FP8").rank(0)
    model, _ = examine(model_dir)
    assert model is not None
    mapping = Mapping(tp_size=2, pp_size=3)
    split = make(model_dir, tmp_path / "split", algo, group=group, kv="FP8", mapping=mapping)
    seen = set()
    for stage in range(3):
        first, second = split.rank(2 * stage), split.rank(2 * stage + 1)
        for name in first.infos:
            full = name.replace(".layers.0.", f".layers.{stage}.")
            seen.add(full)
            wanted = whole.read(full)
            parts = [first.read(name), second.read(name)]
            if parts[0].shape == wanted.shape:
                assert all((bits(part) == bits(wanted)).all() for part in parts), name
            else:
                assert_joins(bits(wanted), [bits(part) for part in parts], name)
    assert seen == set(whole.infos)


def bits(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the bytes of an array under one more axis: NaN equals itself."""
    return np.ascontiguousarray(array).reshape(*array.shape, 1).view(np.uint8)


def assert_joins(
    whole: npt.NDArray[np.uint8], parts: list[npt.NDArray[np.uint8]], name: str
) -> None:
    (axis,) = (i for i, size in enumerate(whole.shape) if size != parts[0].shape[i])
    if "attention.qkv" not in name:
        assert (np.concatenate(parts, axis) == whole).all(), name
        return
    # Four query heads, then two of keys, then two of values: each rank has half of each.
    rows = [[0, 1, 4, 6], [2, 3, 5, 7]]
    blocks = np.split(whole, 8, axis)
    for part, chosen in zip(parts, rows, strict=True):
        assert (part == np.concatenate([blocks[i] for i in chosen], axis)).all(), name


def test_state_is_removed_and_does_not_change_the_bytes(model_dir: Path, tmp_path: Path) -> None:
    first = digests(make(model_dir, tmp_path / "first", "FP8"))
    assert len(list(tmp_path.glob(".calibration-*"))) == 1
    again = digests(make(model_dir, tmp_path / "again", "FP8"))  # from the finished state
    remove_states(tmp_path)
    assert not list(tmp_path.glob(".calibration-*"))
    assert first == again == digests(make(model_dir, tmp_path / "fresh", "FP8"))


def test_other_settings_begin_anew(tmp_path: Path) -> None:
    state = State.open(tmp_path, "a" * 20)
    with state.write_hidden(0) as writer:
        writer.append(np.zeros((2, 3), np.float32))
    state.finish_layer(0, {"x": np.ones(3, np.float32)})
    assert State.open(tmp_path, "a" * 20).next_layer == 1
    assert State.open(tmp_path, "b" * 20).next_layer == 0
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("algo", ["W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", "W4A16_GPTQ"])
def test_killed_calibration_goes_on_to_the_same_bytes(
    algo: str, model_dir: Path, tmp_path: Path
) -> None:
    """SIGKILL in the third layer; GPTQ hands quantized hidden states from layer to layer."""
    layout = "sm80" if algo == "W4A16_GPTQ" else None
    choices = {"layout": layout, "group": 64 if layout else None}
    wanted = digests(make(model_dir, tmp_path / "whole", algo, **choices))
    remove_states(tmp_path)
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from llmc.builders.quantize.walk import Walk\n"
        "from tests.builders.quantize import test_calibration as here\n"
        "done = Walk._quantize\n"
        "def quantize(self, ops, *rest):\n"
        "    tensors = done(self, ops, *rest)\n"
        "    if '.layers.2.' in ops[0].name:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return tensors\n"
        "Walk._quantize = quantize\n"
        f"here.make(Path({str(model_dir)!r}), Path({str(tmp_path / 'killed')!r}), {algo!r},"
        f" **{choices!r})\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (state,) = tmp_path.glob(".calibration-*")
    # The second layer may still have been on its way to the disk.
    assert json.loads((state / "state.json").read_text())["next_layer"] in (1, 2)
    assert digests(make(model_dir, tmp_path / "resumed", algo, **choices)) == wanted


def test_a_cpu_needs_no_torch() -> None:
    script = (
        "import sys\n"
        "from llmc.builders.quantize import calibration, decoder, kernels, walk\n"
        "decoder.arithmetic()\n"
        "print('torch' in sys.modules)\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True)
    if decoder.arithmetic() == "cuda":
        pytest.skip("this machine has CUDA, which torch computes on")
    assert done.stdout == "False\n", done.stderr


def test_what_cannot_be_read_is_named(model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").unlink()
    with pytest.raises(LlmcError, match="calibration.data: .*text.txt: No such file"):
        make(model_dir, tmp_path / "out", "FP8")
