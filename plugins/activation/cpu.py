"""CPU lowering of `activation`, where it was not fused into the linear before it."""

from llmc.plugins.activation.spec import ACTIVATIONS
from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import CpuOp
from llmc.plugins.graph import OpCall

NUMBERS = {name: number for number, name in enumerate(ACTIVATIONS, 1)}
"""Activation → number in plugins/csrc/activations.h; 0 is none."""


def activation_unsupported(call: OpCall) -> list[str]:
    """Return the reason why the kernels lack the activation of `call`, if they do."""
    activation = call.attrs["activation"]
    if activation in NUMBERS:
        return []
    return [f"{call.name}: activation {activation!r}, expected one of {', '.join(NUMBERS)}"]


def unsupported(call: OpCall) -> list[str]:
    return activation_unsupported(call)


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    columns = call.attrs["columns"]
    assert isinstance(columns, int)
    lowering.add_value(call.outputs[0], lowering.rows(call.inputs[0]), columns)
    return [
        CpuOp(
            kind="activation",
            name=call.name,
            inputs=call.inputs,
            outputs=call.outputs,
            dims=(columns, NUMBERS[str(call.attrs["activation"])]),
        )
    ]
