"""CPU lowering of `gated_activation`, where it was not fused into the linear before it."""

from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import CpuOp
from llmc.plugins.graph import OpCall

ACTIVATIONS = ("silu",)
"""What the kernels know, here and in linear's epilogue."""


def unsupported(call: OpCall) -> list[str]:
    activation = call.attrs["activation"]
    if activation in ACTIVATIONS:
        return []
    return [f"{call.name}: activation {activation!r}, expected one of {', '.join(ACTIVATIONS)}"]


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    columns = call.attrs["intermediate_size"]
    assert isinstance(columns, int)
    lowering.add_value(call.outputs[0], lowering.rows(call.inputs[0]), columns)
    return [
        CpuOp(
            kind="gated_activation",
            name=call.name,
            inputs=call.inputs,
            outputs=call.outputs,
            dims=(columns,),
        )
    ]
