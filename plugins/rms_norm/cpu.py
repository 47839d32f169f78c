"""CPU lowering of `rms_norm`."""

import numpy as np

from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import CpuOp
from llmc.plugins.graph import OpCall


def unsupported(call: OpCall) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    """Keep the weight as float32; it is small and read once per step."""
    columns, epsilon = call.attrs["hidden_size"], call.attrs["epsilon"]
    assert isinstance(columns, int) and isinstance(epsilon, float)
    weight = lowering.read(call.weights["weight"]).astype(np.float32)
    lowering.add_value(call.outputs[0], lowering.rows(call.inputs[0]), columns)
    return [
        CpuOp(
            kind="rms_norm",
            name=call.name,
            inputs=call.inputs,
            outputs=call.outputs,
            dims=(columns,),
            params=(epsilon,),
            tensors=(lowering.write(f"{call.name}.weight", weight),),
        )
    ]
