"""TensorRT lowering of `activation`."""

from typing import Any

from llmc.plugins.graph import OpCall
from llmc.plugins.tensorrt_activations import ACTIVATIONS, activate
from llmc.plugins.tensorrt_lowering import Lowering


def unsupported(call: OpCall, max_seq_len: int) -> list[str]:
    activation = call.attrs["activation"]
    if activation in ACTIVATIONS:
        return []
    return [f"{call.name}: activation {activation!r}, expected one of {', '.join(ACTIVATIONS)}"]


def lower(call: OpCall, lowering: Lowering) -> None:
    attrs: dict[str, Any] = call.attrs
    x = lowering.value(call.inputs[0])
    lowering.set_value(call.outputs[0], activate(lowering, attrs["activation"], x))
