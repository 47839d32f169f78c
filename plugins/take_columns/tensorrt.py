"""TensorRT lowering of `take_columns`: a slice, of groups as an axis of their own if several."""

from typing import Any

from llmc.plugins.graph import OpCall
from llmc.plugins.tensorrt_lowering import Lowering


def unsupported(call: OpCall, max_seq_len: int) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> None:
    attrs: dict[str, Any] = call.attrs
    layers, x = lowering.layers, lowering.value(call.inputs[0])
    groups, start, count = attrs["groups"], attrs["start"], attrs["count"]
    if groups == 1:
        taken = layers.columns(x, start, count)
    else:
        # [B, S, groups * size] → [B, S, groups, count] → [B, S, groups * count]
        taken = layers.cut(layers.split_last(x, groups), 3, start, count)
        taken = layers.reshape(taken, (0, 0, groups * count))
    lowering.set_value(call.outputs[0], taken)
