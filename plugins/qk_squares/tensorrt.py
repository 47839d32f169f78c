"""TensorRT lowering of `qk_squares`, in float32."""

from typing import Any

from llmc.plugins.graph import OpCall
from llmc.plugins.tensorrt_lowering import Lowering


def unsupported(call: OpCall, max_seq_len: int) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> None:
    attrs: dict[str, Any] = call.attrs
    layers, size = lowering.layers, attrs["head_size"]
    qkv = lowering.value(call.inputs[0])
    sums, start = [], 0
    for heads in (attrs["num_heads"], attrs["num_kv_heads"]):
        part = layers.cast(layers.columns(qkv, start * size, heads * size), "float32")
        sums.append(layers.reduce("SUM", layers.binary("PROD", part, part), 2))
        start += heads
    lowering.set_value(call.outputs[0], layers.concatenate(sums, 2))
