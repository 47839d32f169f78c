import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmc.checkpoint import Checkpoint, CheckpointConfig, Quantization, tensor_schema
from llmc.dtypes import numpy_dtype
from llmc.errors import CheckpointError
from llmc.mapping import Mapping
from llmc.quant import FORMATS
from llmc.quant.format import load_format
from llmc.tensors import TensorInfo
from llmc.weights import SafetensorsWriter
from tests.checkpoint.test_schema import ARCH

CONFIG = CheckpointConfig(
    arch=ARCH, dtype="float16", mapping=Mapping(tp_size=2, pp_size=3), use_parallel_embedding=True
)
DENSE = "transformer.layers.1.attention.dense.weight"
Schema = dict[str, TensorInfo]


def write(directory: Path, change: Callable[[Schema], None] = lambda schema: None) -> None:
    """Write a checkpoint of zeros whose rank 3 differs from its schema by `change`."""
    (directory / "config.json").write_text(json.dumps(CONFIG.to_json()))
    for rank in range(CONFIG.num_rank_files):
        schema = tensor_schema(CONFIG, rank)
        if rank == 3:
            change(schema)
        with SafetensorsWriter(directory / f"rank{rank}.safetensors", list(schema.values())) as out:
            for info in schema.values():
                out.write(info.name, np.full(info.shape, rank, info.dtype))


def test_a_whole_checkpoint_opens(tmp_path: Path) -> None:
    write(tmp_path)
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.config == CONFIG and checkpoint.directory == tmp_path
    for rank in range(6):
        assert checkpoint.rank(rank).infos == tensor_schema(CONFIG, rank)
        assert (checkpoint.rank(rank).read(DENSE) == rank).all()


def rename(schema: Schema, name: str, **changes: object) -> None:
    schema[name] = replace(schema[DENSE], name=name, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: s.pop(DENSE), f"rank3.safetensors: {DENSE}: missing"),
        (
            lambda s: rename(s, DENSE, shape=(64, 192)),
            f"rank3.safetensors: {DENSE}: shape (64, 192), expected (64, 96)",
        ),
        (
            lambda s: rename(s, DENSE, dtype="int8"),
            f"rank3.safetensors: {DENSE}: dtype int8, expected float16",
        ),
        (
            lambda s: rename(s, "transformer.layers.2.ln.weight"),
            "rank3.safetensors: transformer.layers.2.ln.weight: not a tensor of this model",
        ),
        (
            lambda s: rename(s, DENSE.replace("weight", "per_channel_scale")),
            "per_channel_scale: not a tensor of this model",
        ),
    ],
)
def test_tensors_are_exactly_those_of_the_schema(
    change: Callable[[Schema], None], reason: str, tmp_path: Path
) -> None:
    write(tmp_path, change)
    with pytest.raises(CheckpointError, match="not a whole checkpoint") as caught:
        Checkpoint.open(tmp_path)
    assert reason in caught.value.message


def test_what_nvidias_loader_does_not_need_may_be_there(tmp_path: Path) -> None:
    def add(schema: Schema) -> None:
        for name in ("embed_positions", "rotary_inv_freq", "transformer.layers.0.mlp.clamp_val"):
            rename(schema, name, dtype="float32")

    write(tmp_path, add)
    assert "embed_positions" in Checkpoint.open(tmp_path).rank(3).infos


def test_every_missing_and_truncated_rank_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "rank1.safetensors").unlink()
    path = tmp_path / "rank4.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(tmp_path)
    assert "rank1.safetensors: cannot be read" in caught.value.message
    assert "rank4.safetensors: truncated at lm_head.weight" in caught.value.message


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": "x"}, "config.json: dtype: 'x'"),
        ({"num_hidden_layers": 5}, "pp_size 3 does not divide num_hidden_layers 5"),
    ],
)
def test_a_bad_config_is_named(change: dict[str, object], reason: str, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG.to_json() | change))
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(tmp_path)
    assert reason in caught.value.message


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_config_that_is_no_object_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match="config.json: "):
        Checkpoint.open(tmp_path)


def write_quantized(directory: Path, config: CheckpointConfig, *, without: str = "") -> None:
    (directory / "config.json").write_text(json.dumps(config.to_json()))
    schema = {name: info for name, info in tensor_schema(config, 0).items() if name != without}
    with SafetensorsWriter(directory / "rank0.safetensors", list(schema.values())) as out:
        for info in schema.values():
            out.write(info.name, np.ones(info.shape, numpy_dtype(info.dtype)))


@pytest.mark.parametrize("algo", FORMATS)
def test_a_quantized_checkpoint_opens(algo: str, tmp_path: Path) -> None:
    arch = replace(
        ARCH, hidden_size=128, head_size=32, intermediate_size=256, num_attention_heads=4
    )
    layout = "sm80" if load_format(algo).needs_layout else None
    config = CheckpointConfig(
        arch=arch, dtype="float16", quantization=Quantization.of(algo, "FP8"), layout=layout
    )
    write_quantized(tmp_path, config)
    assert Checkpoint.open(tmp_path).config == config
    if layout is not None:
        unnamed = replace(config, layout=None).to_json()
        (tmp_path / "config.json").write_text(json.dumps(unnamed))
        with pytest.raises(CheckpointError, match="packed for one GPU generation"):
            Checkpoint.open(tmp_path)
        assert Checkpoint.open(tmp_path, layout="sm80").config == config


def test_a_quantized_weight_without_its_scale_is_an_error(tmp_path: Path) -> None:
    arch = replace(ARCH, hidden_size=128)
    config = CheckpointConfig(arch=arch, dtype="float16", quantization=Quantization.of("FP8"))
    scale = "transformer.layers.2.mlp.proj.weights_scaling_factor"
    write_quantized(tmp_path, config, without=scale)
    with pytest.raises(CheckpointError, match=f"{scale}: missing"):
        Checkpoint.open(tmp_path)


def test_bounds_that_nvidias_loader_does_not_need_may_be_absent(tmp_path: Path) -> None:
    quantization = Quantization.of("FP8_PER_CHANNEL_PER_TOKEN")
    config = CheckpointConfig(arch=ARCH, dtype="float16", quantization=quantization)
    write_quantized(tmp_path, config, without="transformer.layers.0.mlp.clamp_val")
    assert "transformer.layers.1.mlp.clamp_val" in Checkpoint.open(tmp_path).rank(0).infos


def test_a_layout_that_contradicts_the_config_is_an_error(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(replace(CONFIG, layout="sm80").to_json()))
    with pytest.raises(CheckpointError, match="layout 'sm90', but config.json says 'sm80'"):
        Checkpoint.open(tmp_path, layout="sm90")
