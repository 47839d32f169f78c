"""TensorRT lowering of `linear`."""

from typing import Any

from llmc.plugins.graph import OpCall
from llmc.plugins.tensorrt_lowering import Lowering, Tensor


def unsupported(call: OpCall) -> list[str]:
    quant = call.attrs["quant"]
    if quant == "none":
        return []
    return [f"{call.name}: quantization {quant!r}, the tensorrt targets have none yet"]


def lower(call: OpCall, lowering: Lowering) -> None:
    attrs: dict[str, Any] = call.attrs
    names = call.weights["weight"]
    shape = (1, attrs["out_features"], attrs["in_features"])
    weight = lowering.weight(
        "+".join(names), shape, lowering.dtype, lambda: lowering.read(names).reshape(shape)
    )
    product = lowering.layers.matmul(lowering.value(call.inputs[0]), weight, transpose_b=True)
    lowering.set_value(call.outputs[0], add_bias(call, lowering, product))


def add_bias(call: OpCall, lowering: Lowering, product: Tensor) -> Tensor:
    """Return product [B, S, out] plus the call's bias, if it has one."""
    if "bias" not in call.weights:
        return product
    attrs: dict[str, Any] = call.attrs
    names, shape = call.weights["bias"], (1, 1, attrs["out_features"])
    bias = lowering.weight(
        "+".join(names), shape, lowering.dtype, lambda: lowering.read(names).reshape(shape)
    )
    return lowering.layers.binary("SUM", product, bias)
