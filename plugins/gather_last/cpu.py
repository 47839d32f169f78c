"""CPU lowering of `gather_last`."""

from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import CpuOp
from llmc.plugins.graph import OpCall


def unsupported(call: OpCall) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    columns = call.attrs["hidden_size"]
    assert isinstance(columns, int)
    lowering.add_value(call.outputs[0], "L", columns)
    return [
        CpuOp(
            kind="gather_last",
            name=call.name,
            inputs=call.inputs,
            outputs=call.outputs,
            dims=(columns,),
        )
    ]
