"""TensorRT lowering of `clamp`."""

from typing import Any

from llmc.plugins.graph import OpCall
from llmc.plugins.tensorrt_lowering import Lowering


def unsupported(call: OpCall, max_seq_len: int) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> None:
    attrs: dict[str, Any] = call.attrs
    x, layers = lowering.value(call.inputs[0]), lowering.layers
    below = layers.binary("MIN", x, layers.like(attrs["limit"], x))
    lowering.set_value(
        call.outputs[0], layers.binary("MAX", below, layers.like(-attrs["limit"], x))
    )
