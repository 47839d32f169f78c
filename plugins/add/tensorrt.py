"""TensorRT lowering of `add`."""

from llmc.plugins.graph import OpCall
from llmc.plugins.tensorrt_lowering import Lowering


def unsupported(call: OpCall) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> None:
    a, b = (lowering.value(name) for name in call.inputs)
    lowering.set_value(call.outputs[0], lowering.layers.binary("SUM", a, b))
