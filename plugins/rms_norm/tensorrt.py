"""TensorRT lowering of `rms_norm`, composed: TensorRT's own normalization subtracts the mean.

In this order of casts the builder makes one kernel of it.
"""

from typing import Any

from llmc.plugins.graph import OpCall
from llmc.plugins.tensorrt_lowering import Lowering, Tensor


def unsupported(call: OpCall, max_seq_len: int) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> None:
    attrs: dict[str, Any] = call.attrs
    names = call.weights["weight"]
    weight = lowering.weight(
        names[0],
        (1, 1, attrs["hidden_size"]),
        lowering.dtype,
        lambda: lowering.read(names).reshape(1, 1, -1),
    )
    normed = normalize(lowering, lowering.value(call.inputs[0]), attrs["epsilon"])
    lowering.set_value(call.outputs[0], lowering.layers.binary("PROD", weight, normed))


def normalize(lowering: Lowering, x: Tensor, epsilon: float) -> Tensor:
    """Return x / sqrt(mean(x**2) + epsilon) over the last axis; float32 inside."""
    layers = lowering.layers
    wide = layers.cast(x, "float32")
    mean = layers.reduce("AVG", layers.binary("PROD", wide, wide), len(x.shape) - 1)
    shifted = layers.binary("SUM", mean, layers.like(epsilon, mean))
    normed = layers.binary("DIV", wide, layers.unary("SQRT", shifted))
    return layers.cast(normed, lowering.dtype)
