"""CPU lowering of `clamp`."""

from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import CpuOp
from llmc.plugins.graph import OpCall


def unsupported(call: OpCall) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    columns, limit = call.attrs["columns"], call.attrs["limit"]
    assert isinstance(columns, int) and isinstance(limit, float)
    lowering.add_value(call.outputs[0], lowering.rows(call.inputs[0]), columns)
    return [
        CpuOp(
            kind="clamp",
            name=call.name,
            inputs=call.inputs,
            outputs=call.outputs,
            dims=(columns,),
            params=(limit,),
        )
    ]
