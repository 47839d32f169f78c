"""TensorRT lowering of `add`."""

from typing import Any

from llmc.plugins.graph import OpCall
from llmc.plugins.tensorrt_lowering import Lowering


def unsupported(call: OpCall, max_seq_len: int) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> None:
    attrs: dict[str, Any] = call.attrs
    a, b = (lowering.value(name) for name in call.inputs)
    b = lowering.layers.scaled(b, attrs["scale"])
    lowering.set_value(call.outputs[0], lowering.layers.binary("SUM", a, b))
