"""CPU lowering of `logits_transform`."""

from typing import Any

from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import CpuOp
from llmc.plugins.graph import OpCall


def unsupported(call: OpCall) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    attrs: dict[str, Any] = call.attrs
    columns = attrs["columns"]
    lowering.add_value(call.outputs[0], lowering.rows(call.inputs[0]), columns)
    return [
        CpuOp(
            kind="logits_transform",
            name=call.name,
            inputs=call.inputs,
            outputs=call.outputs,
            dims=(columns,),
            params=(attrs["scale"], attrs["softcap"] or 0.0),
        )
    ]
