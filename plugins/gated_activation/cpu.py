"""CPU lowering of `gated_activation`, where it was not fused into the linear before it."""

from typing import Any

from llmc.plugins.activation.cpu import NUMBERS, activation_unsupported
from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import CpuOp
from llmc.plugins.graph import OpCall


def unsupported(call: OpCall) -> list[str]:
    return activation_unsupported(call)


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    attrs: dict[str, Any] = call.attrs
    columns = attrs["intermediate_size"]
    lowering.add_value(call.outputs[0], lowering.rows(call.inputs[0]), columns)
    return [
        CpuOp(
            kind="gated_activation",
            name=call.name,
            inputs=call.inputs,
            outputs=call.outputs,
            dims=(columns, NUMBERS[attrs["activation"]], attrs["activated_half"]),
        )
    ]
