"""CPU lowering of `add`, where it was not fused into the linear before it."""

from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import CpuOp
from llmc.plugins.graph import OpCall


def unsupported(call: OpCall) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    columns, scale = call.attrs["hidden_size"], call.attrs["scale"]
    assert isinstance(columns, int) and isinstance(scale, float)
    lowering.add_value(call.outputs[0], lowering.rows(call.inputs[0]), columns)
    return [
        CpuOp(
            kind="add",
            name=call.name,
            inputs=call.inputs,
            outputs=call.outputs,
            dims=(columns,),
            params=(scale,),
        )
    ]
