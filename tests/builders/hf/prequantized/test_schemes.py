"""Each scheme: the checkpoint stands for the very numbers the model's own library computes with."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmc.builders.hf.prequantized import SCHEMES
from tests.builders.hf.prequantized.tiny_quantized import (
    E4M3,
    LAYER,
    MODULES,
    Array,
    Quantize,
    Tensors,
    e4m3,
    int4,
    make,
    pack_int32,
    restored,
    run,
    stored,
    wanted,
)

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def compressed(weights: dict[str, Any], inputs: dict[str, Any] | None, form: str) -> dict[str, Any]:
    """Return a quantization_config whose group has an unusual name."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"any name at all": group},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }


def eight(kind: str, strategy: str, *, dynamic: bool = False) -> dict[str, Any]:
    return {
        "num_bits": 8,
        "type": kind,
        "strategy": strategy,
        "symmetric": True,
        "dynamic": dynamic,
    }


FOUR = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64, "symmetric": True}
PER_TOKEN = {
    "float": eight("float", "token", dynamic=True),
    "int": eight("int", "token", dynamic=True),
}


def fp8(*, rows: bool, static: bool) -> Quantize:
    """FP8 with a scale per row or one, the same for all that become one module."""

    def quantize(
        generator: np.random.Generator, num_out: int, num_in: int, name: str
    ) -> tuple[Tensors, Array]:
        values = e4m3(generator, num_out, num_in)
        shape = (num_out, 1) if rows else (1,)
        scale = generator.uniform(1e-4, 3e-4, shape).astype(np.float32)
        if not rows:
            scale[:] = 0.00021
        tensors: Tensors = {"weight": values, "weight_scale": scale}
        if static:
            tensors["input_scale"] = np.array([0.013], np.float32)
        return tensors, values.astype(np.float32) * scale

    return quantize


def int8(*, static: bool) -> Quantize:
    def quantize(
        generator: np.random.Generator, num_out: int, num_in: int, name: str
    ) -> tuple[Tensors, Array]:
        values = generator.integers(-128, 128, (num_out, num_in), dtype=np.int8)
        scale = generator.uniform(1e-4, 3e-4, (num_out, 1)).astype(np.float32)
        tensors: Tensors = {"weight": values, "weight_scale": scale}
        if static:
            # About the largest input of this model's modules, over 127.
            amax = {"o_proj": 0.6, "down_proj": 0.12}.get(name.rpartition(".")[2], 4.0)
            tensors["input_scale"] = np.array([amax / 127], np.float32)
        return tensors, values.astype(np.float32) * scale

    return quantize


def packed(*, group: int, symmetric: bool) -> Quantize:
    def quantize(
        generator: np.random.Generator, num_out: int, num_in: int, name: str
    ) -> tuple[Tensors, Array]:
        codes, scale, zero, weight = int4(generator, num_out, num_in, group, symmetric=symmetric)
        tensors: Tensors = {
            "weight_packed": pack_int32(codes),
            "weight_scale": scale,
            "weight_shape": np.array([num_out, num_in], np.int64),
        }
        if not symmetric:
            tensors["weight_zero_point"] = np.ascontiguousarray(pack_int32(zero.T).T)
        return tensors, weight

    return quantize


def gptq(*, group: int, symmetric: bool, version: int) -> Quantize:
    def quantize(
        generator: np.random.Generator, num_out: int, num_in: int, name: str
    ) -> tuple[Tensors, Array]:
        codes, scale, zero, weight = int4(generator, num_out, num_in, group, symmetric=symmetric)
        kept = zero - 1 if version == 1 else zero
        tensors: Tensors = {
            "qweight": np.ascontiguousarray(pack_int32(codes).T),
            "qzeros": pack_int32(np.ascontiguousarray(kept.T)),
            "scales": np.ascontiguousarray(scale.T),
            "g_idx": (np.arange(num_in) // group).astype(np.int32),
            # AutoGPTQ gives biases to models that have none.
            "bias": np.zeros(num_out, np.float16),
        }
        return tensors, weight

    return quantize


def awq(*, group: int) -> Quantize:
    def quantize(
        generator: np.random.Generator, num_out: int, num_in: int, name: str
    ) -> tuple[Tensors, Array]:
        codes, scale, zero, weight = int4(generator, num_out, num_in, group, symmetric=False)
        tensors: Tensors = {
            "qweight": pack_int32(np.ascontiguousarray(codes.T), AWQ_ORDER),
            "qzeros": pack_int32(np.ascontiguousarray(zero.T), AWQ_ORDER),
            "scales": np.ascontiguousarray(scale.T),
        }
        return tensors, weight

    return quantize


def nvfp4(
    generator: np.random.Generator, num_out: int, num_in: int, name: str
) -> tuple[Tensors, Array]:
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    codes = generator.integers(0, 16, (num_out, num_in), dtype=np.uint8)
    blocks = generator.uniform(1, 448, (num_out, num_in // 16)).astype(E4M3)
    whole = np.float32(3e-5)
    numbers = np.where(codes < 8, 1, -1).astype(np.float32) * magnitudes[codes & 7]
    scale = np.repeat(blocks.astype(np.float32) * whole, 16, axis=1)
    tensors: Tensors = {
        "weight": codes[:, ::2] | (codes[:, 1::2] << 4),
        "weight_scale": blocks,
        "weight_scale_2": np.array(whole),
        "input_scale": np.array(0.002, np.float32),
    }
    return tensors, numbers * scale


def modelopt_awq(*, with_fp8: bool) -> Quantize:
    """INT4 as ModelOpt packs it: rows 2i and 2i + 1 to a byte; no scales of inputs after norms."""

    def quantize(
        generator: np.random.Generator, num_out: int, num_in: int, name: str
    ) -> tuple[Tensors, Array]:
        values = generator.integers(-8, 8, (num_out, num_in))
        scale = generator.uniform(1e-4, 3e-4, (num_out, num_in // 128)).astype(np.float32)
        nibbles = (values & 15).astype(np.uint8)
        tensors: Tensors = {"weight": nibbles[::2] | (nibbles[1::2] << 4), "weight_scale": scale}
        if name.endswith(("o_proj", "down_proj")):
            tensors["pre_quant_scale"] = generator.uniform(0.5, 2, num_in).astype(np.float16)
        if with_fp8:
            tensors["weight_scale_2"] = np.array(0.0005, np.float32)
            tensors["input_scale"] = np.array(0.013, np.float32)
        return tensors, values.astype(np.float32) * np.repeat(scale, 128, axis=1)

    return quantize


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
MODELOPT_AWQ = {"exclude_modules": ["lm_head"], "group_size": 128, "has_zero_point": False}
Case = tuple[dict[str, Any], Callable[[], Quantize], str, dict[str, Any]]
CASES: dict[str, Case] = {
    "compressed-tensors FP8 static": (
        compressed(eight("float", "tensor"), eight("float", "tensor"), "float-quantized"),
        lambda: fp8(rows=False, static=True),
        "FP8",
        {},
    ),
    "compressed-tensors FP8 per channel": (
        compressed(eight("float", "channel"), PER_TOKEN["float"], "float-quantized"),
        lambda: fp8(rows=True, static=False),
        "FP8_PER_CHANNEL_PER_TOKEN",
        {},
    ),
    "compressed-tensors INT8 per token": (
        compressed(eight("int", "channel"), PER_TOKEN["int"], "int-quantized"),
        lambda: int8(static=False),
        "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN",
        {},
    ),
    "compressed-tensors INT8 static": (
        compressed(eight("int", "channel"), eight("int", "tensor"), "int-quantized"),
        lambda: int8(static=True),
        "W8A8_SQ_PER_CHANNEL",
        {},
    ),
    "compressed-tensors INT4": (
        compressed(FOUR, None, "pack-quantized"),
        lambda: packed(group=64, symmetric=True),
        "W4A16_AWQ",
        {},
    ),
    "compressed-tensors INT4 per channel": (
        compressed({**FOUR, "strategy": "channel", "group_size": None}, None, "pack-quantized"),
        lambda: packed(group=128, symmetric=True),
        "W4A16_AWQ",
        {},
    ),
    "compressed-tensors INT4 with zero points": (
        compressed({**FOUR, "symmetric": False}, None, "pack-quantized"),
        lambda: packed(group=64, symmetric=False),
        "W4A16_GPTQ",
        {"layout": "sm80"},
    ),
    "gptq symmetric": (
        {**GPTQ, "sym": True},
        lambda: gptq(group=64, symmetric=True, version=1),
        "W4A16_AWQ",
        {},
    ),
    "gptq version 1": (
        {**GPTQ, "sym": False, "checkpoint_format": "gptq"},
        lambda: gptq(group=64, symmetric=False, version=1),
        "W4A16_GPTQ",
        {"layout": "sm90"},
    ),
    "gptq version 2": (
        {**GPTQ, "sym": False, "checkpoint_format": "gptq_v2", "desc_act": True},
        lambda: gptq(group=64, symmetric=False, version=2),
        "W4A16_GPTQ",
        {"layout": "sm80"},
    ),
    "gptq version 2 in other words": (
        {"method": "gptq", "format": "gptq_v2", "bits": 4, "group_size": 64, "sym": False},
        lambda: gptq(group=64, symmetric=False, version=2),
        "W4A16_GPTQ",
        {"layout": "sm80"},
    ),
    "awq": (AWQ, lambda: awq(group=64), "W4A16_GPTQ", {"layout": "sm80"}),
    "awq in groups of 128": (
        {**AWQ, "group_size": 128},
        lambda: awq(group=128),
        "W4A16_GPTQ",
        {"layout": "sm80"},
    ),
    "modelopt FP8": (
        {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]},
        lambda: fp8(rows=False, static=True),
        "FP8",
        {},
    ),
    "modelopt FP8 per channel": (
        {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN", "exclude_modules": ["lm_head"]},
        lambda: fp8(rows=True, static=False),
        "FP8_PER_CHANNEL_PER_TOKEN",
        {},
    ),
    "modelopt INT4": (
        {**MODELOPT_AWQ, "quant_algo": "W4A16_AWQ"},
        lambda: modelopt_awq(with_fp8=False),
        "W4A16_AWQ",
        {},
    ),
    "modelopt INT4 with FP8 inputs": (
        {**MODELOPT_AWQ, "quant_algo": "W4A8_AWQ"},
        lambda: modelopt_awq(with_fp8=True),
        "W4A8_AWQ",
        {},
    ),
    "modelopt NVFP4": (
        {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"], "group_size": 16},
        lambda: nvfp4,
        "NVFP4",
        {},
    ),
    "fp8 with one scale": (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": ["lm_head"]},
        lambda: fp8(rows=False, static=False),
        "FP8_PER_CHANNEL_PER_TOKEN",
        {},
    ),
}


def test_every_scheme_has_a_case() -> None:
    named = {case[0].get("quant_method") for case in CASES.values()}
    assert named - {None} == set(SCHEMES)


@pytest.mark.parametrize("name", CASES)
def test_the_weights_are_the_same_numbers(name: str, tmp_path: Path) -> None:
    settings, quantize, algo, choices = CASES[name]
    config, tensors, weights = make(quantize(), settings)
    checkpoint = run(tmp_path, config, tensors, **choices)
    assert checkpoint.config.quantization.quant_algo == algo
    seen = dict(restored(checkpoint))
    assert set(seen) == set(MODULES)
    for module, weight in seen.items():
        np.testing.assert_array_equal(weight, wanted(weights, module), err_msg=module)
    norm = checkpoint.rank(0).read("transformer.layers.0.input_layernorm.weight")
    assert norm.tobytes() == tensors[f"{LAYER}input_layernorm.weight"].tobytes()


@pytest.mark.parametrize(
    "name", ["compressed-tensors FP8 static", "compressed-tensors INT8 static", "modelopt NVFP4"]
)
def test_scales_of_the_inputs_are_carried_over(name: str, tmp_path: Path) -> None:
    settings, quantize, _, choices = CASES[name]
    config, tensors, _ = make(quantize(), settings)
    checkpoint = run(tmp_path, config, tensors, **choices)
    for module, parts in MODULES.items():
        found = stored(checkpoint, module)["activation_scaling_factor"].reshape(-1)
        assert found == tensors[f"{LAYER}{parts[0]}.input_scale"].reshape(-1), module


def test_scales_on_the_inputs_of_int4_are_carried_over(tmp_path: Path) -> None:
    settings, quantize, _, choices = CASES["modelopt INT4 with FP8 inputs"]
    config, tensors, _ = make(quantize(), settings)
    checkpoint = run(tmp_path, config, tensors, **choices)
    for module, parts in MODULES.items():
        found = stored(checkpoint, module)["prequant_scaling_factor"]
        own = tensors.get(f"{LAYER}{parts[0]}.pre_quant_scale", np.ones(128, np.float16))
        np.testing.assert_array_equal(found, own, err_msg=module)
        second = stored(checkpoint, module)["weights_scaling_factor_2"]
        assert second == np.float32(0.0005), module


def test_inputs_of_row_wise_fp8_are_not_clamped(tmp_path: Path) -> None:
    settings, quantize, _, _ = CASES["compressed-tensors FP8 per channel"]
    config, tensors, _ = make(quantize(), settings)
    low, high = stored(run(tmp_path, config, tensors), "mlp.proj")["clamp_val"]
    assert -low == high > 3e38


def test_modelopts_own_file_is_read(tmp_path: Path) -> None:
    _, quantize, _, _ = CASES["modelopt NVFP4"]
    config, tensors, weights = make(quantize(), {})
    del config["quantization_config"]
    inner = {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16}
    file = tmp_path / "model" / "hf_quant_config.json"
    file.parent.mkdir()
    settings = {"quantization": {**inner, "exclude_modules": ["lm_head"]}}
    file.write_text(json.dumps({"producer": {"name": "modelopt", "version": "0.37"}, **settings}))
    for module, weight in restored(run(tmp_path, config, tensors)):
        np.testing.assert_array_equal(weight, wanted(weights, module), err_msg=module)
