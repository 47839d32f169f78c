"""TensorRT lowering of `allgather`: ranks are laid one after the other, then side by side."""

from typing import Any

from llmc.plugins.graph import OpCall
from llmc.plugins.tensorrt_lowering import Lowering


def unsupported(call: OpCall, max_seq_len: int) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> None:
    attrs: dict[str, Any] = call.attrs
    layers, group = lowering.layers, tuple(attrs["group"])
    x = lowering.value(call.inputs[0])
    # [B, S, C] → [1, B, S, C] → [ranks, B, S, C] → [B, S, ranks, C] → [B, S, ranks * C]
    stacked = layers.collective("ALL_GATHER", layers.unsqueeze(x), group)
    y = layers.transpose(stacked, (1, 2, 0, 3), (0, 0, len(group) * attrs["local_columns"]))
    if attrs["num_columns"] < len(group) * attrs["local_columns"]:
        y = layers.columns(y, 0, attrs["num_columns"])
    lowering.set_value(call.outputs[0], y)
