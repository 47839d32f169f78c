"""TensorRT lowering of `sigmoid_gate`."""

from llmc.plugins.graph import OpCall
from llmc.plugins.tensorrt_lowering import Lowering


def unsupported(call: OpCall, max_seq_len: int) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> None:
    x, gate = (lowering.value(name) for name in call.inputs)
    layers = lowering.layers
    lowering.set_value(
        call.outputs[0], layers.binary("PROD", x, layers.activation("SIGMOID", gate))
    )
