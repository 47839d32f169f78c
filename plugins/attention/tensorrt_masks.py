"""Additive masks [B, 1 or N, S, C] for what the fused attention layer does not know by itself."""

from typing import Any

import numpy as np

from llmc.plugins.tensorrt_lowering import Lowering, Tensor

HIDDEN = -60000.0
"""Added to a score nobody may see; within float16, and exp of it is 0."""


def additive_mask(lowering: Lowering, attrs: dict[str, Any]) -> Tensor | None:
    """Return the mask of a sliding window; None where causality is all there is."""
    window = attrs["sliding_window"]
    if window is None or window >= lowering.max_seq_len:
        return None
    return window_mask(lowering, window)


def window_mask(lowering: Lowering, window: int | None) -> Tensor:
    """Return the mask [B, 1, S, C] that hides the future and what is `window` or more behind."""
    length = lowering.max_seq_len if window is None else window
    return lowering.shared(f"mask.{length}", lambda: _window_mask(lowering, length))


def _window_mask(lowering: Lowering, window: int) -> Tensor:
    layers = lowering.layers
    distance = distances(lowering)
    is_past = layers.binary("GREATER", distance, layers.like(-1, distance))
    is_near = layers.binary("LESS", distance, layers.like(window, distance))
    visible = layers.binary("AND", is_past, is_near)
    return layers.select(visible, *(_number(lowering, value) for value in (0.0, HIDDEN)))


def distances(lowering: Lowering) -> Tensor:
    """Return position of query - position of key, int32 [B, 1, S, C]; negative in the future."""
    layers = lowering.layers
    # [B, S] → [B, 1, S, 1]
    queries = layers.reshape(lowering.batch_input("positions"), (0, 1, -1, 1))
    keys = layers.small(np.arange(lowering.max_seq_len).reshape(1, 1, 1, -1), "int32")
    return layers.binary("SUB", queries, keys)


def _number(lowering: Lowering, value: float) -> Tensor:
    layers = lowering.layers
    return layers.cast(layers.small(np.full((1, 1, 1, 1), value), "float32"), lowering.dtype)
