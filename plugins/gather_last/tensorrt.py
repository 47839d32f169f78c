"""TensorRT lowering of `gather_last`."""

from llmc.plugins.graph import OpCall
from llmc.plugins.tensorrt_lowering import Lowering


def unsupported(call: OpCall, max_seq_len: int) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> None:
    hidden, rows = lowering.value(call.inputs[0]), lowering.batch_input("logits_rows")
    lowering.set_value(call.outputs[0], lowering.layers.gather(hidden, rows, batched=True))
