"""CPU lowering of `qk_squares`."""

from typing import Any

from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import CpuOp
from llmc.plugins.graph import OpCall


def unsupported(call: OpCall) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    attrs: dict[str, Any] = call.attrs
    lowering.add_value(call.outputs[0], lowering.rows(call.inputs[0]), 2)
    return [
        CpuOp(
            kind="qk_squares",
            name=call.name,
            inputs=call.inputs,
            outputs=call.outputs,
            dims=(attrs["num_heads"], attrs["num_kv_heads"], attrs["head_size"]),
        )
    ]
