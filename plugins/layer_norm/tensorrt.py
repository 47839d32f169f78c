"""TensorRT lowering of `layer_norm`, composed in float32 as `rms_norm` is."""

from typing import Any

from llmc.plugins.graph import OpCall
from llmc.plugins.rms_norm.tensorrt import normalize
from llmc.plugins.tensorrt_lowering import Lowering, Tensor


def unsupported(call: OpCall, max_seq_len: int) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> None:
    attrs: dict[str, Any] = call.attrs
    layers, shape = lowering.layers, (1, 1, attrs["hidden_size"])

    def weight(role: str) -> Tensor:
        names = call.weights[role]
        return lowering.weight(
            names[0], shape, lowering.dtype, lambda: lowering.read(names).reshape(shape)
        )

    centred = center(lowering, lowering.value(call.inputs[0]))
    y = layers.binary("PROD", weight("weight"), normalize(lowering, centred, attrs["epsilon"]))
    if "bias" in call.weights:
        y = layers.binary("SUM", y, weight("bias"))
    lowering.set_value(call.outputs[0], y)


def center(lowering: Lowering, x: Tensor) -> Tensor:
    """Return x minus its mean over the last axis, in float32."""
    layers = lowering.layers
    wide = layers.cast(x, "float32")
    return layers.binary("SUB", wide, layers.reduce("AVG", wide, len(x.shape) - 1))
