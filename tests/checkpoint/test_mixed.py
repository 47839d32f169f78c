"""Quantization by module: MIXED_PRECISION and quant_cfg.json."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmc.checkpoint import (
    Checkpoint,
    CheckpointConfig,
    Quantization,
    forbidden,
    tensor_schema,
    unsplittable,
    write_config,
)
from llmc.errors import CheckpointError
from llmc.mapping import Mapping
from tests.checkpoint.test_combinations import ARCH

LAYERS = "transformer.layers"
ALGOS = {
    f"{LAYERS}.0.attention.qkv": "FP8",
    f"{LAYERS}.0.mlp.fc": "W4A16_AWQ",
    f"{LAYERS}.0.mlp.gate": "W4A16_AWQ",
    f"{LAYERS}.1.mlp.proj": "W8A8_SQ_PER_CHANNEL",
}


def mixed(algos: dict[str, str], kv: str | None = "FP8", **changes: Any) -> CheckpointConfig:
    quantization = Quantization.mixed(algos, kv, group_size=64)
    config = CheckpointConfig(arch=ARCH, dtype="float16", quantization=quantization)
    return replace(config, **changes)


def test_each_module_has_the_tensors_of_its_own_format() -> None:
    config = mixed(ALGOS)
    assert not forbidden(config) and not unsplittable(config)
    schema = tensor_schema(config, 0)
    types = {
        name.removeprefix(f"{LAYERS}."): (info.dtype, info.shape)
        for name, info in schema.items()
        if name.endswith("weight")
    }
    assert types["0.attention.qkv.weight"] == ("float8_e4m3fn", (768, 512))
    assert types["1.attention.qkv.weight"] == ("float16", (768, 512))
    assert types["0.mlp.gate.weight"] == ("int8", (768, 512))
    assert types["1.mlp.proj.weight"] == ("int8", (512, 1536))
    assert schema[f"{LAYERS}.0.mlp.fc.weights_scaling_factor"].shape == (1536, 8)
    assert f"{LAYERS}.1.attention.kv_cache_scaling_factor" in schema


def test_what_is_written_is_what_tensorrt_llm_reads(tmp_path: Path) -> None:
    """Source: NVIDIA/TensorRT-LLM 0.17 examples/quantization/README.md, its example."""
    config = mixed(ALGOS)
    write_config(tmp_path, config)
    quantization = json.loads((tmp_path / "config.json").read_text())["quantization"]
    assert quantization["quant_algo"] == "MIXED_PRECISION"
    assert quantization["kv_cache_quant_algo"] == "FP8"
    assert "quantized_layers" not in quantization
    layers = json.loads((tmp_path / "quant_cfg.json").read_text())["quantized_layers"]
    assert layers.keys() == ALGOS.keys()
    assert layers[f"{LAYERS}.0.mlp.fc"] == {
        "quant_algo": "W4A16_AWQ",
        "group_size": 64,
        "has_zero_point": False,
        "pre_quant_scale": True,
    }
    assert CheckpointConfig.from_json(config.to_json()) == config


def test_quant_cfg_of_another_tool_is_read(tmp_path: Path) -> None:
    config = mixed({f"{LAYERS}.0.attention.qkv": "FP8"}, kv=None)
    data = config.to_json()
    del data["llmc"]
    (tmp_path / "config.json").write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match="quant_cfg.json: cannot be read"):
        Checkpoint.open(tmp_path)
    layers: dict[str, Any] = {f"{LAYERS}.0.attention.qkv": {"quant_algo": "FP8"}}
    cfg = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    (tmp_path / "quant_cfg.json").write_text(json.dumps(cfg))
    with pytest.raises(CheckpointError, match="rank0.safetensors: cannot be read"):
        Checkpoint.open(tmp_path)
    layers["x"] = {"quant_algo": "FP7"}
    (tmp_path / "quant_cfg.json").write_text(json.dumps(cfg))
    with pytest.raises(CheckpointError, match="quantized_layers.x: .*expected an object with a"):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (mixed({}), "quant_cfg.json names no module"),
        (mixed({"lm_head": "FP8"}), "lm_head is no linear module of a layer"),
        (
            mixed({f"{LAYERS}.0.mlp.fc": "FP8"}),
            f"{LAYERS}.0.mlp.fc and {LAYERS}.0.mlp.gate: quantized differently",
        ),
        (
            mixed({f"{LAYERS}.0.mlp.proj": "FP8_PER_CHANNEL_PER_TOKEN"}),
            "FP8_PER_CHANNEL_PER_TOKEN cannot be chosen by module",
        ),
        (mixed(ALGOS, mapping=Mapping(pp_size=2)), "MIXED_PRECISION with pp_size 2, expected 1"),
        (mixed({f"{LAYERS}.0.mlp.proj": "NVFP4"}, kv="INT8"), "NVFP4 with an INT8 KV cache"),
        (mixed({f"{LAYERS}.0.mlp.proj": "W4A16_GPTQ"}), "W4A16_GPTQ has no portable form"),
        (mixed(ALGOS, layout="sm80"), "is the same for every GPU; leave it out"),
    ],
)
def test_what_cannot_be_mixed_is_refused(config: CheckpointConfig, reason: str) -> None:
    assert any(reason in found for found in forbidden(config)), forbidden(config)


def test_groups_of_every_layer_are_checked() -> None:
    config = mixed({f"{LAYERS}.1.attention.dense": "W4A16_AWQ"})
    split = replace(
        config, mapping=Mapping(tp_size=8), arch=replace(ARCH, head_size=32, hidden_size=256)
    )
    assert any(f"{LAYERS}.1.attention.dense: tp_size 8" in reason for reason in unsplittable(split))
