"""CPU lowering of `layer_norm`."""

import numpy as np

from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import CpuOp
from llmc.plugins.graph import OpCall


def unsupported(call: OpCall) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    """Keep weight and bias as float32; they are small and read once per step."""
    columns, epsilon = call.attrs["hidden_size"], call.attrs["epsilon"]
    assert isinstance(columns, int) and isinstance(epsilon, float)
    tensors: list[str | None] = []
    for role in ("weight", "bias"):
        if role in call.weights:
            vector = lowering.read(call.weights[role]).astype(np.float32)
            tensors.append(lowering.write(f"{call.name}.{role}", vector))
        else:
            tensors.append(None)
    lowering.add_value(call.outputs[0], lowering.rows(call.inputs[0]), columns)
    return [
        CpuOp(
            kind="layer_norm",
            name=call.name,
            inputs=call.inputs,
            outputs=call.outputs,
            dims=(columns,),
            params=(epsilon,),
            tensors=tuple(tensors),
        )
    ]
