"""What no format holds, and what is missing or left over, is said in one line each."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmc.builders.convert import preflight
from llmc.checkpoint import Quantization
from llmc.errors import CheckpointError
from llmc.mapping import Mapping
from tests.builders.families.tiny_families import write_case
from tests.builders.hf.prequantized.test_schemes import CASES, GPTQ, compressed, eight, gptq
from tests.builders.hf.prequantized.tiny_quantized import (
    E4M3,
    LAYER,
    Tensors,
    int4,
    make,
    run,
    stored,
)
from tests.builders.hf_models import write_tiny

FP8 = "compressed-tensors FP8 static"
ROWS = "compressed-tensors FP8 per channel"
UP = f"{LAYER}mlp.up_proj"
Q, K, V = (f"{LAYER}self_attn.{part}_proj" for part in "qkv")


def model(name: str) -> tuple[dict[str, Any], Tensors]:
    settings, quantize, _, _ = CASES[name]
    config, tensors, _ = make(quantize(), settings)
    return config, tensors


def reasons_of(
    directory: Path, config: dict[str, Any], tensors: Tensors, **choices: Any
) -> list[str]:
    (directory / "model.safetensors").unlink(missing_ok=True)
    write_tiny(directory, config, tensors)
    defaults: dict[str, Any] = {"dtype": None, "mapping": Mapping()}
    return preflight(directory, **{**defaults, "quantization": Quantization(), **choices})


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        (FP8, "weight_scale"),
        (FP8, "input_scale"),
        ("compressed-tensors INT8 per token", "weight_scale"),
        ("compressed-tensors INT4", "weight_scale"),
        ("compressed-tensors INT4 with zero points", "weight_zero_point"),
        ("gptq symmetric", "qzeros"),
        ("awq", "scales"),
        ("modelopt NVFP4", "weight_scale_2"),
    ],
)
def test_a_missing_scale_is_an_error(name: str, suffix: str, tmp_path: Path) -> None:
    config, tensors = model(name)
    del tensors[f"{UP}.{suffix}"]
    (reason,) = reasons_of(tmp_path, config, tensors, layout=CASES[name][3].get("layout"))
    assert f"{UP}.{suffix}: missing" in reason


@pytest.mark.parametrize(
    "left_over", [f"{UP}.weight_scale_inv", f"{LAYER}input_layernorm.weight_scale"]
)
def test_a_scale_that_is_left_over_is_an_error(left_over: str, tmp_path: Path) -> None:
    config, tensors = model(FP8)
    tensors[left_over] = np.ones(1, np.float32)
    (reason,) = reasons_of(tmp_path, config, tensors)
    assert f"{left_over}: not a tensor of" in reason


def test_an_fp8_weight_that_is_said_to_be_plain_is_an_error(tmp_path: Path) -> None:
    config, tensors = model(FP8)
    config["quantization_config"]["ignore"] = ["lm_head", "re:.*up_proj"]
    reasons = reasons_of(tmp_path, config, tensors)
    assert any(f"{UP}.weight: dtype float8_e4m3fn" in reason for reason in reasons)
    config.pop("quantization_config")
    reasons = reasons_of(tmp_path, config, tensors)
    assert any(f"{UP}.weight: dtype float8_e4m3fn" in reason for reason in reasons)


def test_a_plain_weight_that_is_said_to_be_quantized_is_an_error(tmp_path: Path) -> None:
    config, tensors = model(FP8)
    for suffix in ("weight_scale", "input_scale"):
        del tensors[f"{UP}.{suffix}"]
    tensors[f"{UP}.weight"] = tensors[f"{UP}.weight"].astype(np.float16)
    reasons = reasons_of(tmp_path, config, tensors)
    assert any(f"{UP}.weight: dtype float16, expected one of" in reason for reason in reasons)


def scale_of_zero(tensors: Tensors) -> None:
    tensors[f"{UP}.weight_scale"][:] = 0


def scale_not_finite(tensors: Tensors) -> None:
    tensors[f"{UP}.weight_scale"][:] = np.inf


def weight_not_finite(tensors: Tensors) -> None:
    tensors[f"{UP}.weight"][3, 5] = np.nan


@pytest.mark.parametrize("break_it", [scale_of_zero, scale_not_finite, weight_not_finite])
def test_a_value_that_is_no_number_is_an_error(
    break_it: Callable[[Tensors], None], tmp_path: Path
) -> None:
    config, tensors = model(FP8)
    tensors = {name: value.copy() for name, value in tensors.items()}
    break_it(tensors)
    with pytest.raises(CheckpointError, match=UP):
        run(tmp_path, config, tensors)
    assert list((tmp_path / "out").iterdir()) == []


BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (BLOCKS, "weight_block_size: [128, 128], expected none"),
        ({"quant_method": "bitsandbytes"}, "quant_method: 'bitsandbytes', expected one of"),
        ({**GPTQ, "bits": 3}, "bits: 3, expected 4"),
        ({**GPTQ, "group_size": 32}, "group_size: 32, expected a multiple of 64"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format: 'marlin', expected one of"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version: 'gemv', expected 'gemm'"),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"},
            "quant_algo: 'NVFP4_AWQ', expected",
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ", "group_size": 64},
            "group_size: 64, expected 128",
        ),
        (
            compressed(eight("float", "channel"), eight("float", "tensor"), "float-quantized"),
            "config_groups: {",
        ),
        (compressed(eight("int", "tensor"), None, "int-quantized"), "config_groups: {"),
    ],
)
def test_what_no_format_holds_is_one_line(
    settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    config, tensors = model(FP8)
    config["quantization_config"] = settings
    (found,) = reasons_of(tmp_path, config, tensors)
    assert f"quantization_config: {reason}" in found


def test_permuted_groups_are_refused_before_anything_is_converted(tmp_path: Path) -> None:
    quantize = gptq(group=64, symmetric=True, version=1)
    config, tensors, _ = make(quantize, {**GPTQ, "sym": True, "desc_act": True})
    tensors[f"{UP}.g_idx"] = tensors[f"{UP}.g_idx"][::-1].copy()
    (reason,) = reasons_of(tmp_path, config, tensors)
    assert f"{UP}.g_idx: groups of permuted columns" in reason


def test_a_zero_point_of_version_1_without_a_meaning_is_an_error(tmp_path: Path) -> None:
    settings, quantize, _, choices = CASES["gptq version 1"]
    config, tensors, _ = make(quantize(), settings)
    tensors[f"{UP}.qzeros"] = np.full_like(tensors[f"{UP}.qzeros"], -1)
    with pytest.raises(CheckpointError, match="qzeros: 15"):
        run(tmp_path, config, tensors, **choices)


def test_scales_that_the_dtype_does_not_hold_are_an_error(tmp_path: Path) -> None:
    settings, quantize, _, choices = CASES["awq"]
    config, tensors, _ = make(quantize(), settings)
    tensors[f"{UP}.scales"] = tensors[f"{UP}.scales"] * np.float16(1.001)
    with pytest.raises(CheckpointError, match="is no number of bfloat16"):
        run(tmp_path, config, tensors, dtype="bfloat16", **choices)


def test_a_bias_of_a_model_without_must_be_zero(tmp_path: Path) -> None:
    config, tensors = model("gptq symmetric")
    tensors[f"{UP}.bias"][4] = 1
    (reason,) = reasons_of(tmp_path, config, tensors)
    assert f"{UP}.bias: not zero" in reason


def test_another_quantization_is_refused(tmp_path: Path) -> None:
    config, tensors = model(FP8)
    for wanted in (Quantization.of("W4A16_AWQ"), Quantization.of(None, "INT8")):
        (reason,) = reasons_of(tmp_path, config, tensors, quantization=wanted)
        assert "the model is quantized already" in reason
    assert reasons_of(tmp_path, config, tensors, quantization=Quantization.of("FP8")) == []


def test_parts_of_one_module_are_quantized_alike(tmp_path: Path) -> None:
    config, tensors = model(FP8)
    config["quantization_config"]["ignore"] = ["lm_head", K]
    reasons = reasons_of(tmp_path, config, tensors)
    assert any("expected all or none: they become one module" in reason for reason in reasons)


def test_modules_left_plain_are_excluded(tmp_path: Path) -> None:
    settings, quantize, _, _ = CASES[FP8]
    down = f"{LAYER}mlp.down_proj"
    settings = {**settings, "ignore": ["lm_head", "re:.*down_proj"]}
    config, tensors, _ = make(quantize(), settings, plain=(down,))
    checkpoint = run(tmp_path, config, tensors)
    assert checkpoint.config.quantization.exclude_modules == (
        "lm_head",
        "transformer.layers.0.mlp.proj",
    )
    assert stored(checkpoint, "mlp.proj")["weight"].tobytes() == tensors[f"{down}.weight"].tobytes()


def test_q_k_and_v_share_the_largest_scale(tmp_path: Path) -> None:
    config, tensors = model(FP8)
    for name, scale in ((Q, 0.0004), (K, 0.0002), (V, 0.0004)):
        tensors[f"{name}.weight_scale"] = np.array([scale], np.float32)
    tensors[f"{K}.input_scale"] = np.array([0.5], np.float32)
    found = stored(run(tmp_path, config, tensors), "attention.qkv")
    assert found["weights_scaling_factor"] == np.float32(0.0004)
    assert found["activation_scaling_factor"] == np.float32(0.5)
    q, k, v = np.split(found["weight"], [128, 192])
    for part, name in ((q, Q), (v, V)):
        assert part.tobytes() == tensors[f"{name}.weight"].tobytes()
    # Half the number at twice the scale: exact but for numbers that become subnormal.
    halved = (tensors[f"{K}.weight"].astype(np.float32) * np.float32(0.5)).astype(E4M3)
    assert k.tobytes() == halved.tobytes()


@pytest.mark.parametrize("name", [FP8, "modelopt FP8"])
def test_scales_of_the_kv_cache_become_the_larger(name: str, tmp_path: Path) -> None:
    config, tensors = model(name)
    settings = config["quantization_config"]
    if name == FP8:
        settings["kv_cache_scheme"] = eight("float", "tensor")
        names = (f"{LAYER}self_attn.k_scale", f"{LAYER}self_attn.v_scale")
    else:
        settings["kv_cache_quant_algo"] = "FP8"
        names = (f"{K}.k_scale", f"{V}.v_scale")
    (tmp_path / "without").mkdir()
    reasons = reasons_of(tmp_path / "without", config, tensors)
    assert len(reasons) == 2 and all("missing" in reason for reason in reasons)
    for scale, value in zip(names, (0.5, 2.0), strict=True):
        tensors[scale] = np.array([value], np.float32)
    checkpoint = run(tmp_path, config, tensors)
    assert checkpoint.config.quantization.kv_cache_quant_algo == "FP8"
    found = checkpoint.rank(0).read("transformer.layers.0.attention.kv_cache_scaling_factor")
    assert found == np.float32(2)


def test_groups_are_split_over_ranks(tmp_path: Path) -> None:
    settings, quantize, _, choices = CASES["awq"]
    config, tensors, _ = make(quantize(), settings)
    (tmp_path / "whole").mkdir()
    whole = run(tmp_path / "whole", config, tensors, layout="sm90")
    split = run(tmp_path, config, tensors, layout="sm90", mapping=Mapping(tp_size=2))
    name = "transformer.layers.0.mlp.proj.zero"
    parts = [split.rank(rank).read(name) for rank in (0, 1)]
    assert np.concatenate(parts).tobytes() == whole.rank(0).read(name).tobytes()


def test_zero_points_are_rounded_to_the_models_dtype(tmp_path: Path) -> None:
    settings, quantize, _, choices = CASES["awq"]
    config, tensors, _ = make(quantize(), settings)
    _, scale, _, _ = int4(np.random.default_rng(1), 128, 128, 64, symmetric=True)
    tensors[f"{UP}.scales"] = np.ascontiguousarray(scale.T)
    found = stored(run(tmp_path, config, tensors, **choices), "mlp.gate")
    assert found["weights_scaling_factor"].tobytes() == tensors[f"{UP}.scales"].tobytes()
    steps = found["zero"].astype(np.float32) / scale.T.astype(np.float32)
    np.testing.assert_allclose(steps, np.rint(steps), atol=8 * 2.0**-11)


def test_transposed_modules_are_not_read_quantized(tmp_path: Path) -> None:
    directory, _ = write_case(tmp_path, "gpt2")
    path = directory / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["quantization_config"] = CASES[FP8][0]
    path.write_text(json.dumps(config), encoding="utf-8")
    reasons = preflight(directory, dtype=None, mapping=Mapping(), quantization=Quantization())
    assert any("does not store it as [out, in]" in reason for reason in reasons)
