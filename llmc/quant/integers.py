"""Rounding weights to INT8 and INT4, and two INT4 to a byte.

Source of the packing: NVIDIA/TensorRT-LLM 0.17 cpp/tensorrt_llm/kernels/cutlass_kernels/
cutlass_preprocessors.cpp and ModelOpt 0.37 export (AWQ): the lower four bits are the element with
the even index, in two's complement.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.quant.format import row_chunks

Round = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]


def half_away(scaled: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Round to the nearest integer, halves away from zero, as C's round."""
    whole: npt.NDArray[np.float32] = np.trunc(scaled)
    # Adding 0.5 before truncating would round 0.49999997 up; the remainder is exact.
    whole += np.copysign(np.abs(scaled - whole) >= 0.5, scaled)
    return whole


def half_even(scaled: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Round to the nearest integer, halves to the even one, as torch.round."""
    whole: npt.NDArray[np.float32] = np.rint(scaled)
    return whole


def encode(
    weight: npt.NDArray[Any],
    scale: npt.NDArray[np.float32],
    *,
    lowest: int,
    highest: int,
    rounding: Round,
    zero: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.int8]:
    """Return (weight - zero) / scale, rounded and clamped, int8 [out, in].

    `scale` and `zero` are [out or 1, groups]; a scale of 0 gives 0. Memory beyond the result stays
    under about 40 MiB, or five float32 rows.
    """
    groups = scale.shape[1]
    shape = (weight.shape[0], groups)
    scale = np.broadcast_to(np.where(scale > 0, scale, np.float32(1)), shape)
    offset = None if zero is None else np.broadcast_to(zero, shape)
    values: npt.NDArray[np.int8] = np.empty(weight.shape, np.int8)
    for rows in row_chunks(weight):
        scaled = np.array(weight[rows], dtype=np.float32, order="C")
        grouped = scaled.reshape(len(scaled), groups, -1)
        if offset is not None:
            grouped -= offset[rows, :, None]
        grouped /= scale[rows, :, None]
        values[rows] = np.clip(rounding(scaled), lowest, highest).astype(np.int8)
    return values


def pack_nibbles(values: npt.NDArray[np.int8], axis: int) -> npt.NDArray[np.int8]:
    """Return two values in -8..7 (or 0..15) per byte, `axis` half as long."""
    assert values.ndim == 2 and values.shape[axis] % 2 == 0, values.shape
    even, odd = (values[::2], values[1::2]) if axis == 0 else (values[:, ::2], values[:, 1::2])
    packed: npt.NDArray[np.int8] = ((even.view(np.uint8) & 0x0F) | (odd.view(np.uint8) << 4)).view(
        np.int8
    )
    return packed


def unpack_nibbles(packed: npt.NDArray[Any], axis: int) -> npt.NDArray[np.int8]:
    """Return the values in -8..7 of `pack_nibbles`."""
    shape = list(packed.shape)
    shape[axis] *= 2
    values: npt.NDArray[np.int8] = np.empty(shape, np.int8)
    even, odd = (values[::2], values[1::2]) if axis == 0 else (values[:, ::2], values[:, 1::2])
    signed = packed.view(np.int8)
    even[...] = (signed << 4) >> 4
    odd[...] = signed >> 4
    return values
