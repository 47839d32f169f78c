"""compressed-tensors: FP8, INT8 with INT8 inputs, and packed INT4, as llm-compressor writes them.

Groups of modules may have any names; here all must be quantized alike.

Source: compressed-tensors 0.20, compressed_tensors/quantization/{quant_config,quant_args}.py and
compressors/{naive_quantized,pack_quantized}: numbers in `weight`, or with 8 added, eight to an
int32 along in, the lowest bits first, in `weight_packed`; zero points likewise along out.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from llmc.arch import ModelArch
from llmc.builders.hf.config import HfConfig
from llmc.builders.hf.prequantized import fusing
from llmc.builders.hf.prequantized.scheme import (
    FLOATS,
    SCALAR,
    Scheme,
    Source,
    Stored,
    Tensors,
    grouped_size,
    names_matcher,
    order_reason,
    strings,
)
from llmc.quant.format import Choice

NO_CLAMP = (-3.3895313892515355e38, 3.3895313892515355e38)
"""The largest bfloat16: inputs of these models are not clamped."""

_STATIC = {"strategy": "tensor", "dynamic": False}
_DYNAMIC = {"strategy": "token", "dynamic": True}


def read(config: HfConfig, arch: ModelArch) -> Scheme | None:
    """Return the scheme of one config group, or of several that are equal."""
    status = config.raw("quantization_status")
    if status not in (None, "compressed", "frozen"):
        config.refuse("quantization_status", status, "'compressed'")
    sparsity = config.raw("sparsity_config")
    if isinstance(sparsity, dict) and sparsity.get("format", "dense") != "dense":
        config.refuse("sparsity_config", sparsity.get("format"), "'dense'")
    for key in ("transform_config", "transforms"):
        if config.raw(key):
            config.refuse(key, config.raw(key), "none")
    group, targets = _only_group(config)
    if group is None:
        return None
    ignored = names_matcher(config, strings(config, "ignore"))
    targeted = names_matcher(config, targets)
    scheme = _scheme(config, group, arch)
    if scheme is None:
        return None
    return replace(
        scheme,
        is_plain=lambda module: ignored(module) or not targeted(module),
        kv_scales=_kv_scales(config),
    )


def _only_group(config: HfConfig) -> tuple[dict[str, Any] | None, list[str]]:
    """Return what weights and inputs of all groups are, and the modules they are for."""
    groups = config.raw("config_groups")
    first, targets = None, []
    if not isinstance(groups, dict) or not groups:
        config.refuse("config_groups", groups, "an object of groups")
        return None, []
    for name, group in groups.items():
        if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
            config.refuse(f"config_groups.{name}", group, "an object with weights")
            return None, []
        found = {key: _essence(group.get(key)) for key in ("weights", "input_activations")}
        found["format"] = group.get("format") or config.raw("format")
        if _essence(group.get("output_activations")) is not None:
            config.refuse(f"config_groups.{name}.output_activations", "present", "none")
        if first is not None and found != first:
            config.refuse(f"config_groups.{name}", found, f"the same as the others: {first}")
            return None, []
        first = found
        targets += [str(target) for target in group.get("targets") or ()]
    return first, targets


def _essence(args: Any) -> dict[str, Any] | None:
    """Return what of QuantizationArgs matters, with their defaults."""
    if not isinstance(args, dict):
        return None
    size = args.get("group_size")
    strategy = args.get("strategy") or ("tensor" if size is None else "group")
    if size == -1:
        strategy, size = "channel", None
    return {
        "num_bits": args.get("num_bits", 8),
        "type": args.get("type", "int"),
        "symmetric": args.get("symmetric", True),
        "strategy": strategy,
        "group_size": size,
        "dynamic": bool(args.get("dynamic", False)),
    }


def _scheme(config: HfConfig, group: dict[str, Any], arch: ModelArch) -> Scheme | None:
    weights, inputs, form = group["weights"], group["input_activations"], group["format"]
    kind: tuple[str, Any] = (str(weights["type"]), weights["num_bits"])
    if kind == ("int", 4) and inputs is None and form == "pack-quantized":
        return _packed(config, weights, arch)
    by_rows = weights["strategy"] in ("tensor", "channel") and weights["symmetric"]
    if inputs is not None and by_rows and kind in (("float", 8), ("int", 8)):
        same = (inputs["type"], inputs["num_bits"], inputs["symmetric"]) == (*kind, True)
        how = {key: inputs[key] for key in ("strategy", "dynamic")}
        if same and how == _DYNAMIC:
            return _eight_bits(kind[0], static=False)
        one_scale = weights["strategy"] == "tensor"
        if same and how == _STATIC and (one_scale or kind == ("int", 8)):
            return _eight_bits(kind[0], static=True)
    config.refuse(
        "config_groups",
        {"format": form, "weights": weights, "input_activations": inputs},
        "FP8 or INT8, symmetric, per tensor or channel, with inputs per token or (FP8: both) per"
        " tensor, or INT4 alone in pack-quantized: TensorRT-LLM's formats hold no others",
    )
    return None


def _eight_bits(kind: str, *, static: bool) -> Scheme:
    number = "float8_e4m3fn" if kind == "float" else "int8"
    single = kind == "float" and static

    def stored(num_out: int, num_in: int) -> dict[str, Stored]:
        rows = SCALAR if single else (*SCALAR, (num_out,), (num_out, 1))
        tensors = {
            "weight": Stored(dtypes=(number,), shapes=((num_out, num_in),)),
            "weight_scale": Stored(dtypes=FLOATS, shapes=rows),
        }
        if static:
            tensors["input_scale"] = Stored(dtypes=FLOATS, shapes=SCALAR)
        return tensors

    algo, convert = {
        ("float", True): ("FP8", fusing.fp8_tensors),
        ("float", False): ("FP8_PER_CHANNEL_PER_TOKEN", fusing.fp8_rows),
        ("int", True): ("W8A8_SQ_PER_CHANNEL", fusing.int8_static),
        ("int", False): ("W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", fusing.int8_per_token),
    }[kind, static]
    clamp = NO_CLAMP if algo == "FP8_PER_CHANNEL_PER_TOKEN" else None
    return Scheme(algo=algo, stored=stored, convert=convert, is_plain=bool, clamp=clamp)


def _packed(config: HfConfig, weights: dict[str, Any], arch: ModelArch) -> Scheme | None:
    if weights["strategy"] not in ("group", "channel"):
        config.refuse("config_groups", weights["strategy"], "INT4 per group or channel")
        return None
    size = weights["group_size"] if weights["strategy"] == "group" else None
    if size is not None and type(size) is not int:
        config.refuse("group_size", size, "a number")
        return None
    kept = grouped_size(config, size, arch)
    if kept is None:
        return None
    symmetric = bool(weights["symmetric"])

    def stored(num_out: int, num_in: int) -> dict[str, Stored]:
        groups = 1 if size is None else num_in // size
        tensors = {
            "weight_packed": Stored(dtypes=("int32",), shapes=((num_out, -(-num_in // 8)),)),
            "weight_scale": Stored(dtypes=FLOATS, shapes=((num_out, groups),)),
            "weight_shape": Stored(dtypes=("int64", "int32"), shapes=((2,),)),
            "weight_g_idx": Stored(dtypes=("int32",), shapes=((num_in,),), optional=True),
        }
        if not symmetric:
            shape = (-(-num_out // 8), groups)
            tensors["weight_zero_point"] = Stored(dtypes=("int32",), shapes=(shape,))
        return tensors

    def convert(sources: Sequence[Source], choice: Choice) -> Tensors:
        packed = [fusing.nibbles(source.tensors["weight_packed"], 1) for source in sources]
        scales = [source.scales("weight_scale") for source in sources]
        codes, scale = np.concatenate(packed), np.concatenate(scales)
        if symmetric:
            return fusing.int4_symmetric(codes, scale, choice)
        zeros = [
            fusing.nibbles(source.tensors["weight_zero_point"], 0)[: len(part)]
            for source, part in zip(sources, packed, strict=True)
        ]
        return fusing.int4_with_zeros(codes, scale, np.concatenate(zeros), choice, sources[0].name)

    def look(source: Source) -> str | None:
        return order_reason(source, "weight_g_idx", size or arch.hidden_size)

    return Scheme(
        algo="W4A16_AWQ" if symmetric else "W4A16_GPTQ",
        stored=stored,
        convert=convert,
        is_plain=bool,
        group_size=kept,
        looked_at=("weight_g_idx",),
        look=look,
    )


def _kv_scales(config: HfConfig) -> tuple[str, ...]:
    found = config.raw("kv_cache_scheme")
    if found is None:
        return ()
    args = _essence(found)
    wanted = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}
    if args is None or args | wanted != args or args["strategy"] != "tensor":
        config.refuse("kv_cache_scheme", found, "FP8, symmetric, static, per tensor")
    return ("k_scale", "v_scale")
