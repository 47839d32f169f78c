"""TensorRT lowering of `head_norm`: q and k heads normalized over their columns, v untouched."""

from typing import Any

from llmc.plugins.graph import OpCall
from llmc.plugins.layer_norm.tensorrt import center
from llmc.plugins.rms_norm.tensorrt import normalize
from llmc.plugins.tensorrt_lowering import Lowering, Tensor


def unsupported(call: OpCall, max_seq_len: int) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> None:
    attrs: dict[str, Any] = call.attrs
    layers, size, kv_heads = lowering.layers, attrs["head_size"], attrs["num_kv_heads"]
    qkv = lowering.value(call.inputs[0])
    parts, start = [], 0
    for role, heads in (("q_weight", attrs["num_heads"]), ("k_weight", kv_heads)):
        part = layers.columns(qkv, start * size, heads * size)
        parts.append(_normed(lowering, call, part, role, heads))
        start += heads
    parts.append(layers.columns(qkv, start * size, kv_heads * size))
    lowering.set_value(call.outputs[0], layers.concatenate(parts, 2))


def _normed(lowering: Lowering, call: OpCall, x: Tensor, role: str, heads: int) -> Tensor:
    attrs: dict[str, Any] = call.attrs
    layers, size, names = lowering.layers, attrs["head_size"], call.weights[role]
    shape = (1, 1, heads if attrs["per_head"] else 1, size)
    weight = lowering.weight(
        names[0], shape, lowering.dtype, lambda: lowering.read(names).reshape(shape)
    )
    # [B, S, heads * size] → [B, S, heads, size]
    split = layers.split_last(x, heads)
    if attrs["kind"] == "layer_norm":
        split = center(lowering, split)
    normed = layers.binary("PROD", weight, normalize(lowering, split, attrs["epsilon"]))
    return layers.reshape(normed, (0, 0, heads * size))
