"""CPU lowering of `take_columns`."""

from typing import Any

from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import CpuOp
from llmc.plugins.graph import OpCall


def unsupported(call: OpCall) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    attrs: dict[str, Any] = call.attrs
    columns = attrs["groups"] * attrs["count"]
    lowering.add_value(call.outputs[0], lowering.rows(call.inputs[0]), columns)
    return [
        CpuOp(
            kind="take_columns",
            name=call.name,
            inputs=call.inputs,
            outputs=call.outputs,
            dims=(attrs["groups"], attrs["group_size"], attrs["start"], attrs["count"]),
        )
    ]
