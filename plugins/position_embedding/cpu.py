"""CPU lowering of `position_embedding`."""

from llmc.plugins.cpu_lowering import Lowering
from llmc.plugins.cpu_program import CpuOp
from llmc.plugins.graph import OpCall


def unsupported(call: OpCall) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> list[CpuOp]:
    """Keep the rows that the engine's longest sequence can reach, mapped, in their own dtype."""
    columns, positions = call.attrs["hidden_size"], call.attrs["num_positions"]
    assert isinstance(columns, int) and isinstance(positions, int)
    assert lowering.max_seq_len <= positions, (lowering.max_seq_len, positions)
    table = lowering.read(call.weights["weight"])[: lowering.max_seq_len]
    lowering.add_value(call.outputs[0], "T", columns)
    return [
        CpuOp(
            kind="position_embedding",
            name=call.name,
            inputs=call.inputs,
            outputs=call.outputs,
            type=lowering.dtype,
            dims=(columns,),
            tensors=(lowering.write(f"{call.name}.weight", table, resident=False),),
        )
    ]
