"""CPU lowering of `allgather`: a cut in the program, where the engine calls its communicator."""

from typing import Any

from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import CpuOp
from llmc.plugins.graph import OpCall


def unsupported(call: OpCall) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    attrs: dict[str, Any] = call.attrs
    lowering.add_value(call.outputs[0], attrs["rows"], attrs["num_columns"])
    return [
        CpuOp(
            kind="allgather",
            name=call.name,
            inputs=call.inputs,
            outputs=call.outputs,
            group=tuple(attrs["group"]),
        )
    ]
