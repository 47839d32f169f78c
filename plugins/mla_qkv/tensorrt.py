"""TensorRT lowering of `mla_qkv`: heads put together from slices.

Legend: B slots, S tokens, N heads, D nope_size + rope_size.
"""

from typing import Any

from llmc.plugins.graph import OpCall
from llmc.plugins.tensorrt_lowering import Lowering


def unsupported(call: OpCall, max_seq_len: int) -> list[str]:
    attrs: dict[str, Any] = call.attrs
    size = attrs["nope_size"] + attrs["rope_size"]
    if attrs["value_size"] <= size:
        return []
    return [f"{call.name}: {attrs['value_size']} columns of v, expected at most {size}, as of k"]


def lower(call: OpCall, lowering: Lowering) -> None:
    attrs: dict[str, Any] = call.attrs
    layers, heads = lowering.layers, attrs["num_heads"]
    still, moving, of_value = attrs["nope_size"], attrs["rope_size"], attrs["value_size"]
    q, kv, rope = (lowering.value(name) for name in call.inputs)
    q_BSND = layers.split_last(q, heads)
    q_moving, q_still = layers.cut(q_BSND, 3, still, moving), layers.cut(q_BSND, 3, 0, still)
    k_still = layers.split_last(layers.columns(kv, 0, heads * still), heads)
    # The same for every head.
    k_moving = layers.concatenate([layers.split_last(rope, 1)] * heads, 2)
    values = layers.split_last(layers.columns(kv, heads * still, heads * of_value), heads)
    parts = (
        layers.concatenate([q_moving, q_still], 3),
        layers.concatenate([k_moving, k_still], 3),
        layers.padded(values, 3, still + moving - of_value),
    )
    qkv = layers.concatenate(list(parts), 2)
    lowering.set_value(call.outputs[0], layers.reshape(qkv, (0, 0, 3 * heads * (still + moving))))
