"""CPU lowering of `sigmoid_gate`."""

from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import CpuOp
from llmc.plugins.graph import OpCall


def unsupported(call: OpCall) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    columns = call.attrs["hidden_size"]
    assert isinstance(columns, int)
    lowering.add_value(call.outputs[0], lowering.rows(call.inputs[0]), columns)
    return [
        CpuOp(
            kind="sigmoid_gate",
            name=call.name,
            inputs=call.inputs,
            outputs=call.outputs,
            dims=(columns,),
        )
    ]
