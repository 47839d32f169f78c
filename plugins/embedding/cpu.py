"""CPU lowering of `embedding`."""

from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import CpuOp
from llmc.plugins.graph import OpCall


def unsupported(call: OpCall) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    """Keep the table row by row in the checkpoint's dtype, mapped: a step touches few rows."""
    columns, start = call.attrs["hidden_size"], call.attrs["vocab_start"]
    scale = call.attrs["scale"]
    assert isinstance(columns, int) and isinstance(start, int) and isinstance(scale, float)
    table = lowering.read(call.weights["weight"])
    lowering.add_value(call.outputs[0], "T", columns)
    return [
        CpuOp(
            kind="embedding",
            name=call.name,
            inputs=(),
            outputs=call.outputs,
            type=lowering.dtype,
            dims=(columns, start, table.shape[0]),
            params=(scale,),
            tensors=(lowering.write(f"{call.name}.weight", table, resident=False),),
        )
    ]
