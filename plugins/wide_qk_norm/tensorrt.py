"""TensorRT lowering of `wide_qk_norm`, in float32 up to the end."""

from typing import Any

from llmc.plugins.graph import OpCall
from llmc.plugins.tensorrt_lowering import Lowering, Tensor


def unsupported(call: OpCall, max_seq_len: int) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> None:
    attrs: dict[str, Any] = call.attrs
    layers, size = lowering.layers, attrs["head_size"]
    qkv, squares = (lowering.value(name) for name in call.inputs)
    kv_heads, parts, start = attrs["num_kv_heads"], [], 0
    groups = (("q_weight", attrs["num_heads"], attrs["total_heads"]),
              ("k_weight", kv_heads, attrs["total_kv_heads"]))  # fmt: skip
    for place, (role, heads, total) in enumerate(groups):
        square = layers.columns(squares, place, 1)
        mean = layers.scaled(square, 1.0 / (total * size))
        root = layers.unary("SQRT", layers.binary("SUM", mean, layers.like(attrs["epsilon"], mean)))
        part = layers.cast(layers.columns(qkv, start * size, heads * size), "float32")
        weight = layers.cast(_weight(lowering, call, role, heads * size), "float32")
        normed = layers.binary("PROD", weight, layers.binary("DIV", part, root))
        parts.append(layers.cast(normed, lowering.dtype))
        start += heads
    parts.append(layers.columns(qkv, start * size, kv_heads * size))
    lowering.set_value(call.outputs[0], layers.concatenate(parts, 2))


def _weight(lowering: Lowering, call: OpCall, role: str, columns: int) -> Tensor:
    names, shape = call.weights[role], (1, 1, columns)
    return lowering.weight(
        names[0], shape, lowering.dtype, lambda: lowering.read(names).reshape(shape)
    )
