"""Additive masks [B, 1 or N, S, C] for what the fused attention layer does not know by itself.

Legend: B slots, S tokens, N query heads, C positions of the KV cache.
"""

from typing import Any

import numpy as np

from llmc.plugins.alibi import alibi_bias
from llmc.plugins.graph import OpCall
from llmc.plugins.tensorrt_lowering import Lowering, Tensor

HIDDEN = -60000.0
"""Added to a score nobody may see; within float16, and exp of it is 0."""


def additive_mask(lowering: Lowering, call: OpCall, num_positions: int) -> Tensor | None:
    """Return what window, ALiBi and sinks add to the scores; None where causality is all."""
    attrs: dict[str, Any] = call.attrs
    if attrs["alibi"] is not None:
        mask = _biased_mask(lowering, attrs, num_positions)
    elif "sinks" in call.weights or _window(lowering, attrs) is not None:
        mask = causal_mask(lowering, attrs, num_positions)
    else:
        return None
    return _with_sinks(lowering, call, mask, num_positions) if "sinks" in call.weights else mask


def causal_mask(lowering: Lowering, attrs: dict[str, Any], num_positions: int) -> Tensor:
    """Return the mask [B, 1, S, C] that hides the future and what a window leaves behind."""
    window = _window(lowering, attrs)

    def make() -> Tensor:
        numbers = (_number(lowering, value) for value in (0.0, HIDDEN))
        return lowering.layers.select(_visible(lowering, window, num_positions), *numbers)

    return lowering.shared(f"mask.{window}.{num_positions}", make)


def _window(lowering: Lowering, attrs: dict[str, Any]) -> int | None:
    """Return the sliding window, if it hides anything."""
    window: int | None = attrs["sliding_window"]
    return None if window is None or window >= lowering.max_seq_len else window


def _visible(lowering: Lowering, window: int | None, num_positions: int) -> Tensor:
    layers = lowering.layers
    # [B, S] → [B, 1, S, 1]
    queries = layers.reshape(lowering.batch_input("positions"), (0, 1, -1, 1))
    # Position of query - position of key; negative in the future.
    distance = layers.binary("SUB", queries, _keys(lowering, num_positions))
    is_past = layers.binary("GREATER", distance, layers.like(-1, distance))
    if window is None:
        return is_past
    is_near = layers.binary("LESS", distance, layers.like(window, distance))
    return layers.binary("AND", is_past, is_near)


def _biased_mask(lowering: Lowering, attrs: dict[str, Any], num_positions: int) -> Tensor:
    """Return the causal mask [B, N, S, C] with ALiBi's bias where a key may be seen.

    The bias is a function of the key alone, less what it is at the query's own position. That is
    the same to the softmax, keeps the numbers of near keys small, and so exact in 16 bits.
    """
    layers, alibi, window = lowering.layers, attrs["alibi"], _window(lowering, attrs)
    heads, scale = attrs["num_heads"], attrs["scale"]

    def make() -> Tensor:
        start = np.zeros(1, np.int64)
        of_keys = alibi_bias(alibi, heads, start, num_positions, scale)[:, 0]
        of_queries = layers.gather(
            layers.small(of_keys.T, "float32", "alibi"), lowering.batch_input("positions")
        )
        # [B, S, N] → [B, N, S, 1]
        of_queries = layers.reshape(of_queries, (0, 0, heads, 1), transpose=(0, 2, 1, 3))
        bias = layers.binary(
            "SUB", layers.small(of_keys[None, :, None], "float32", "alibi"), of_queries
        )
        return layers.select(
            _visible(lowering, window, num_positions),
            layers.cast(bias, lowering.dtype),
            _number(lowering, HIDDEN),
        )

    return lowering.shared(f"mask.{window}.{num_positions}.{alibi}", make)


def _with_sinks(lowering: Lowering, call: OpCall, mask: Tensor, num_positions: int) -> Tensor:
    """Return a mask [B, N, S, C] that gives the key after a slot's last one each head's sink."""
    layers, heads = lowering.layers, call.attrs["num_heads"]
    assert isinstance(heads, int)
    lengths = layers.reshape(lowering.batch_input("kv_lens"), (0, 1, 1, 1))
    is_sink = layers.binary("EQUAL", lengths, _keys(lowering, num_positions))
    names = call.weights["sinks"]
    shape = (1, heads, 1, 1)
    sinks = lowering.weight(
        names[0], shape, lowering.dtype, lambda: lowering.read(names).reshape(shape)
    )
    return layers.select(is_sink, sinks, mask)


def _keys(lowering: Lowering, num_positions: int) -> Tensor:
    keys = np.arange(num_positions).reshape(1, 1, 1, -1)
    return lowering.layers.small(keys, "int32")


def _number(lowering: Lowering, value: float) -> Tensor:
    layers = lowering.layers
    return layers.cast(layers.small(np.full((1, 1, 1, 1), value), "float32"), lowering.dtype)
