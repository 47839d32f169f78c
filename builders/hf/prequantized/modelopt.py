"""NVIDIA ModelOpt's unified Hugging Face checkpoints: FP8 and NVFP4.

Settings are in hf_quant_config.json and, since ModelOpt 0.31, in config.json's quantization_config,
in the same words. Scales are what TensorRT-LLM's checkpoint has under other names.

Source: NVIDIA/ModelOpt 0.37 modelopt/torch/export/{unified_export_hf,quant_utils}.py.
"""

from llmc.arch import ModelArch
from llmc.builders.hf.config import HfConfig
from llmc.builders.hf.prequantized import fusing
from llmc.builders.hf.prequantized.scheme import (
    SCALAR,
    Scheme,
    Stored,
    pattern_matcher,
    strings,
)
from llmc.quant import nvfp4

_SCALE = Stored(dtypes=("float32",), shapes=SCALAR)
_KV_SCALES = ("k_proj.k_scale", "v_proj.v_scale")


def read(config: HfConfig, arch: ModelArch) -> Scheme | None:
    """Return the scheme of `quant_algo`."""
    num_reasons = len(config.reasons)
    algo = config.require(str, "quant_algo")
    if algo not in ("FP8", "NVFP4"):
        config.refuse("quant_algo", algo, "FP8 or NVFP4")
    if algo == "NVFP4" and config.optional(int, "group_size", nvfp4.BLOCK) != nvfp4.BLOCK:
        config.refuse("group_size", config.raw("group_size"), str(nvfp4.BLOCK))
    kv_algo = config.raw("kv_cache_quant_algo") or _kv_of_scheme(config)
    if kv_algo not in (None, "FP8"):
        config.refuse("kv_cache_quant_algo", kv_algo, "'FP8' or none")
    left_out = (*strings(config, "exclude_modules"), *strings(config, "ignore"))
    if len(config.reasons) > num_reasons:
        return None
    return Scheme(
        algo=algo,
        stored=_fp8 if algo == "FP8" else _nvfp4,
        convert=fusing.fp8_tensors if algo == "FP8" else fusing.nvfp4_tensors,
        is_plain=pattern_matcher(left_out),
        group_size=nvfp4.BLOCK if algo == "NVFP4" else None,
        kv_scales=_KV_SCALES if kv_algo else (),
    )


def _kv_of_scheme(config: HfConfig) -> str | None:
    """Return the KV cache's algorithm as config.json says it."""
    found = config.raw("kv_cache_scheme")
    if found is None:
        return None
    is_fp8 = isinstance(found, dict) and (found.get("type"), found.get("num_bits")) == ("float", 8)
    return "FP8" if is_fp8 else str(found)


def _fp8(num_out: int, num_in: int) -> dict[str, Stored]:
    return {
        "weight": Stored(dtypes=("float8_e4m3fn",), shapes=((num_out, num_in),)),
        "weight_scale": _SCALE,
        "input_scale": _SCALE,
    }


def _nvfp4(num_out: int, num_in: int) -> dict[str, Stored]:
    blocks = num_in // nvfp4.BLOCK
    return {
        "weight": Stored(dtypes=("uint8",), shapes=((num_out, num_in // 2),)),
        "weight_scale": Stored(dtypes=("float8_e4m3fn",), shapes=((num_out, blocks),)),
        "weight_scale_2": _SCALE,
        "input_scale": _SCALE,
    }
