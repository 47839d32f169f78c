"""TensorRT lowering of `position_embedding`: rows of a table, by each token's position."""

from typing import Any

from llmc.plugins.graph import OpCall
from llmc.plugins.tensorrt_lowering import Lowering


def unsupported(call: OpCall, max_seq_len: int) -> list[str]:
    num_positions = call.attrs["num_positions"]
    assert isinstance(num_positions, int)
    if max_seq_len <= num_positions:
        return []
    return [f"{call.name}: max_seq_len {max_seq_len}, the table has {num_positions} positions"]


def lower(call: OpCall, lowering: Lowering) -> None:
    attrs: dict[str, Any] = call.attrs
    names, layers = call.weights["weight"], lowering.layers
    shape = (attrs["num_positions"], attrs["hidden_size"])
    table = lowering.weight(names[0], shape, lowering.dtype, lambda: lowering.read(names))
    rows = layers.gather(table, lowering.batch_input("positions"))
    hidden = lowering.value(call.inputs[0])
    lowering.set_value(call.outputs[0], layers.binary("SUM", hidden, rows))
