"""Compute capabilities the tensorrt targets build for, and what each does with a quantization.

Of TensorRT for RTX it is from builds with 1.7.1 whose plans were read: a combination is listed as
emulated where the builder accepts it and the plan then dequantizes and multiplies in 16 bits. Of
TensorRT itself it is what the GPUs have; its plans were not read.
"""

from collections.abc import Iterable, Iterator, Mapping

from llmc.checkpoint import CheckpointConfig

CLASSES: tuple[tuple[int, ...], ...] = ((75,), (80, 86), (89,), (120, 121))
"""A plan for several classes has one program, of what all of them can: each gets its own."""

_FROM_89 = "FP8 begins with compute capability 89"
_FROM_120 = "4-bit floats begin with compute capability 120"
_FROM_100 = "4-bit floats begin with compute capability 100"
_FROM_80 = "INT4 begins with compute capability 80"
_PER_TOKEN = "TensorRT has no products of inputs that are rounded per token"
_W4A8 = "TensorRT refuses INT4 weights with FP8 inputs"
_NO_BF16 = "bfloat16 begins with compute capability 80"

_ROUNDED_KV_CACHE = (
    "the cache stays in 16 bits: keys and values are rounded on their way into it and take as much"
    " memory as before"
)
INT8_KV_CACHE, FP8_KV_CACHE = "KV cache of INT8", "KV cache of FP8"
"""What the tables below call a kv_cache_quant_algo."""

Table = Mapping[str, Mapping[int, str]]

REFUSED: dict[str, dict[int, str]] = {
    "bfloat16": {75: _NO_BF16},
    "W4A16": {75: _FROM_80},
    "W4A16_AWQ": {75: _FROM_80},
    "W4A16_GPTQ": {75: _FROM_80},
    "W4A8_AWQ": dict.fromkeys((75, 80, 89, 120), _W4A8),
    "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN": dict.fromkeys((75, 80, 89, 120), _PER_TOKEN),
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": dict.fromkeys((75, 80, 89, 120), _PER_TOKEN),
    "FP8": {75: _FROM_89, 80: _FROM_89},
    "FP8_PER_CHANNEL_PER_TOKEN": dict.fromkeys((75, 80, 89, 120), _PER_TOKEN),
    "NVFP4": dict.fromkeys((75, 80, 89), _FROM_120),
    FP8_KV_CACHE: {75: _FROM_89, 80: _FROM_89},
}
"""dtype or quant_algo → first capability of a class → why there is no plan."""

EMULATED: dict[str, dict[int, str]] = {
    "W8A16": {75: "half of the products dequantize first"},
    INT8_KV_CACHE: dict.fromkeys((75, 80, 89, 120), _ROUNDED_KV_CACHE),
}
"""dtype or quant_algo → first capability of a class → what the plan does instead."""


_ALL_THE_SAME = " (--allow-emulated builds it all the same)"

GPUS = (75, 80, 86, 89, 90, 100, 103, 110, 120, 121)
"""What TensorRT itself builds for."""

_FIRST: dict[str, tuple[int, str]] = {
    "bfloat16": (80, _NO_BF16),
    **dict.fromkeys(("W4A16", "W4A16_AWQ", "W4A16_GPTQ"), (80, _FROM_80)),
    **dict.fromkeys(("FP8", FP8_KV_CACHE), (89, _FROM_89)),
    "NVFP4": (100, _FROM_100),
}
_NEVER = {name: reasons[120] for name, reasons in REFUSED.items() if 120 in reasons}
REFUSED_BY_TENSORRT: dict[str, dict[int, str]] = {
    **{name: dict.fromkeys(GPUS, reason) for name, reason in _NEVER.items()},
    **{
        name: {gpu: reason for gpu in GPUS if gpu < first}
        for name, (first, reason) in _FIRST.items()
    },
}
"""REFUSED of TensorRT itself, by capability. Source: "Datatype and hardware support matrix" of
Transformer Engine and "Support Matrix" of Model Optimizer, both NVIDIA's."""


EMULATED_BY_TENSORRT = {INT8_KV_CACHE: dict.fromkeys(GPUS, _ROUNDED_KV_CACHE)}
"""EMULATED of TensorRT itself, by capability."""


def quantization_reasons(
    config: CheckpointConfig,
    key: int,
    gpus: str,
    refused: Table,
    emulated: Table,
    *,
    allow_emulated: bool,
) -> Iterator[str]:
    """Yield why GPUs do not compute in a checkpoint's types; `key` is theirs in the tables."""
    quantization = config.quantization
    algos = {layer.quant_algo for layer in quantization.quantized_layers.values()}
    algos = algos or {quantization.quant_algo}
    kv_cache = quantization.kv_cache_quant_algo
    if kv_cache is not None:
        algos = {*algos, f"KV cache of {kv_cache}"}
    for name in sorted({config.dtype, *filter(None, algos)}):
        if key in refused.get(name, {}):
            yield f"{name} on compute capability {gpus}: {refused[name][key]}"
        elif key in emulated.get(name, {}) and not allow_emulated:
            yield f"{name} on compute capability {gpus}: {emulated[name][key]}{_ALL_THE_SAME}"


def plans_of(capabilities: Iterable[int], *, refit: bool = False) -> list[tuple[int, ...]]:
    """Group capabilities into plans: by class, ascending.

    A plan that is refitted serves one capability alone: the builder compiles what transforms its
    weights for one.
    """
    wanted = set(capabilities)
    if refit:
        return [(one,) for one in sorted(wanted)]
    groups = (tuple(one for one in group if one in wanted) for group in CLASSES)
    return [group for group in groups if group]


def class_of(capability: int) -> int:
    """Return the first capability of the class, its key in the tables above."""
    return next(group[0] for group in CLASSES if capability in group)


def rtx_gpus_with(name: str) -> list[int]:
    """Return the capabilities whose plans have dtype or quant_algo `name` and do not undo it."""
    tables = (REFUSED.get(name, {}), EMULATED.get(name, {}))
    return [gpu for group in CLASSES for gpu in group if not any(group[0] in one for one in tables)]


def gpus_with(name: str) -> list[int]:
    """Return the capabilities for which TensorRT itself has dtype or quant_algo `name`."""
    tables = (REFUSED_BY_TENSORRT.get(name, {}), EMULATED_BY_TENSORRT.get(name, {}))
    return [gpu for gpu in GPUS if not any(gpu in one for one in tables)]
