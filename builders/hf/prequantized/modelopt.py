"""NVIDIA ModelOpt's unified Hugging Face checkpoints: FP8, NVFP4, and INT4 chosen by AWQ.

Settings are in hf_quant_config.json and, since ModelOpt 0.31, in config.json's quantization_config,
in the same words. Scales are what TensorRT-LLM's checkpoint has under other names.

Source: NVIDIA/ModelOpt 0.37 modelopt/torch/export/{unified_export_hf,quant_utils}.py.
"""

from functools import partial

from llmc.arch import ModelArch
from llmc.builders.hf.config import HfConfig
from llmc.builders.hf.prequantized import compressed_tensors, fusing
from llmc.builders.hf.prequantized.scheme import (
    FLOATS,
    SCALAR,
    Convert,
    Scheme,
    Stored,
    grouped_size,
    pattern_matcher,
    strings,
)
from llmc.quant import nvfp4
from llmc.quant.format import load_format

_SCALE = Stored(dtypes=("float32",), shapes=SCALAR)
_KV_SCALES = ("k_proj.k_scale", "v_proj.v_scale")
_CONVERT: dict[str, Convert] = {
    "FP8": fusing.fp8_tensors,
    "FP8_PER_CHANNEL_PER_TOKEN": fusing.fp8_rows,
    "NVFP4": fusing.nvfp4_tensors,
    "W4A16_AWQ": fusing.awq_tensors,
    "W4A8_AWQ": fusing.awq_with_fp8,
}


def read(config: HfConfig, arch: ModelArch) -> Scheme | None:
    """Return the scheme of `quant_algo`."""
    num_reasons = len(config.reasons)
    algo = config.require(str, "quant_algo")
    if algo not in _CONVERT:
        config.refuse("quant_algo", algo, f"one of {', '.join(_CONVERT)}")
        return None
    size = _group_size(config, arch, algo)
    kv_algo = config.raw("kv_cache_quant_algo") or _kv_of_scheme(config)
    if kv_algo not in (None, "FP8"):
        config.refuse("kv_cache_quant_algo", kv_algo, "'FP8' or none")
    left_out = (*strings(config, "exclude_modules"), *strings(config, "ignore"))
    if len(config.reasons) > num_reasons:
        return None
    return Scheme(
        algo=algo,
        stored=partial(_stored, algo, config.maybe(int, "group_size") or 1),
        convert=_CONVERT[algo],
        is_plain=pattern_matcher(left_out),
        group_size=size,
        kv_scales=_KV_SCALES if kv_algo else (),
        clamp=compressed_tensors.NO_CLAMP if algo == "FP8_PER_CHANNEL_PER_TOKEN" else None,
    )


def _group_size(config: HfConfig, arch: ModelArch, algo: str) -> int | None:
    """Return the group size to store, None where there are no groups; note what is none of ours."""
    wanted = load_format(algo).group_sizes
    if not wanted:
        return None
    found = config.optional(int, "group_size", wanted[-1])
    if algo.endswith("_AWQ"):
        config.expect("has_zero_point", False)
        config.raw("pre_quant_scale")  # the tensors say which modules have one
        kept = grouped_size(config, found, arch)
    else:
        kept = found
    if kept is not None and kept not in wanted:
        config.refuse("group_size", found, " or ".join(map(str, wanted)))
    return kept


def _kv_of_scheme(config: HfConfig) -> str | None:
    """Return the KV cache's algorithm as config.json says it."""
    found = config.raw("kv_cache_scheme")
    if found is None:
        return None
    is_fp8 = isinstance(found, dict) and (found.get("type"), found.get("num_bits")) == ("float", 8)
    return "FP8" if is_fp8 else str(found)


def _stored(algo: str, group: int, num_out: int, num_in: int) -> dict[str, Stored]:
    e4m3, blocks = ("float8_e4m3fn",), num_in // nvfp4.BLOCK
    weight = Stored(dtypes=e4m3, shapes=((num_out, num_in),))
    if algo == "FP8":
        return {"weight": weight, "weight_scale": _SCALE, "input_scale": _SCALE}
    if algo == "FP8_PER_CHANNEL_PER_TOKEN":
        rows = Stored(dtypes=FLOATS, shapes=((num_out,), (num_out, 1)))
        return {"weight": weight, "weight_scale": rows}
    if algo == "NVFP4":
        return {
            "weight": Stored(dtypes=("uint8",), shapes=((num_out, num_in // 2),)),
            "weight_scale": Stored(dtypes=e4m3, shapes=((num_out, blocks),)),
            "weight_scale_2": _SCALE,
            "input_scale": _SCALE,
        }
    int4 = {
        "weight": Stored(dtypes=("uint8", "int8"), shapes=((num_out // 2, num_in),)),
        "weight_scale": Stored(dtypes=FLOATS, shapes=((num_out, num_in // group),)),
        "pre_quant_scale": Stored(dtypes=FLOATS, shapes=((num_in,),), optional=True),
    }
    return int4 if algo == "W4A16_AWQ" else int4 | {"weight_scale_2": _SCALE, "input_scale": _SCALE}
