"""TensorRT lowering of `linear`: one product, of weights in the form the format has for a GPU.

Several modules of one product are one weight, laid one after the other. Inputs that a format scales
are multiplied first; weights and inputs that it rounds go through quantize and dequantize layers,
which the builder fuses into the product.
"""

from typing import Any

from llmc.dtypes import numpy_dtype
from llmc.plugins.graph import OpCall
from llmc.plugins.linear.tensorrt_quantized import FORMATS, product, weight_of
from llmc.plugins.tensorrt_lowering import Lowering, Tensor


def unsupported(call: OpCall, max_seq_len: int) -> list[str]:
    quant = str(call.attrs["quant"])
    if quant == "none" or quant in FORMATS:
        return []
    known = ", ".join(FORMATS)
    return [f"{call.name}: quantization {quant!r}, the tensorrt targets have {known}"]


def lower(call: OpCall, lowering: Lowering) -> None:
    attrs: dict[str, Any] = call.attrs
    x = lowering.value(call.inputs[0])
    if attrs["quant"] == "none":
        names, shape = call.weights["weight"], (1, attrs["out_features"], attrs["in_features"])
        weight = _constant(lowering, names, shape)
        y = lowering.layers.matmul(x, weight, transpose_b=True)
    else:
        y = product(x, weight_of(call, lowering))
    lowering.set_value(call.outputs[0], _add_bias(call, lowering, y))


def _add_bias(call: OpCall, lowering: Lowering, y: Tensor) -> Tensor:
    """Return y [B, S, out] plus the call's bias, if it has one."""
    if "bias" not in call.weights:
        return y
    attrs: dict[str, Any] = call.attrs
    names, shape = call.weights["bias"], (1, 1, attrs["out_features"])
    return lowering.layers.binary("SUM", y, _constant(lowering, names, shape))


def _constant(lowering: Lowering, names: tuple[str, ...], shape: tuple[int, ...]) -> Tensor:
    """Add tensors in the type of activations; a router's are float32 in the checkpoint."""
    dtype = lowering.dtype
    return lowering.weight(
        "+".join(names),
        shape,
        dtype,
        lambda: lowering.read(names).astype(numpy_dtype(dtype), copy=False).reshape(shape),
    )
