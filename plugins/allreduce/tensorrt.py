"""TensorRT lowering of `allreduce`: a collective layer inside the plan."""

from typing import Any

from llmc.plugins.graph import OpCall
from llmc.plugins.tensorrt_lowering import Lowering


def unsupported(call: OpCall, max_seq_len: int) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> None:
    attrs: dict[str, Any] = call.attrs
    x = lowering.value(call.inputs[0])
    lowering.set_value(
        call.outputs[0], lowering.layers.collective("ALL_REDUCE", x, tuple(attrs["group"]))
    )
