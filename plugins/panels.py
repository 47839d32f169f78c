"""Weights in the order the CPU kernels read them: panels of 32 output columns.

fp32 and fp16 [N/32, K, 32]; bf16 and bytes [N/32, K/32, 2, 16 k-pairs, 16 n, 2], the order of AMX
B-tiles; four-bit numbers the same with a pair per byte (plugins/csrc/panel.h).
N and K are padded to multiples of 32 with zeros.

Legend: N output features, K input features.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

PANEL = 32
PAIRED = ("bfloat16", "int8")
"""Element types stored as pairs of neighbouring k."""


def padded(count: int) -> int:
    """Round up to whole panels."""
    return -(-count // PANEL) * PANEL


def pack_panels(weight_NK: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return `weight_NK` in panel order, of its element type; peak memory is twice its size."""
    num_out, num_in = weight_NK.shape
    rows, columns = padded(num_out), padded(num_in)
    if (rows, columns) != (num_out, num_in):
        whole: npt.NDArray[Any] = np.zeros((rows, columns), weight_NK.dtype)
        whole[:num_out, :num_in] = weight_NK
        weight_NK = whole
    blocks, depth = rows // PANEL, columns // PANEL
    if weight_NK.dtype.name in PAIRED:
        # A pair moves as one element: half as many moves, and numpy has a fast path for integers.
        pair = np.uint32 if weight_NK.dtype.itemsize == 2 else np.uint16
        pairs = np.ascontiguousarray(weight_NK).view(pair)
        tiles = pairs.reshape(blocks, 2, 16, depth, 16).transpose(0, 3, 1, 4, 2)
        packed: npt.NDArray[Any] = np.ascontiguousarray(tiles).view(weight_NK.dtype)
        return packed.reshape(blocks, depth, 2, 16, 16, 2)
    return np.ascontiguousarray(weight_NK.reshape(blocks, PANEL, columns).transpose(0, 2, 1))


def interleave_halves(rows_N: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Reorder [2 * I, ...] so that 16 rows of the first half are followed by the 16 of the second.

    Both halves are padded to multiples of 16 with zeros. A panel then holds 16 activated columns
    and the 16 they are multiplied with.
    """
    half = rows_N.shape[0] // 2
    whole = -(-half // 16) * 16
    parts: npt.NDArray[Any] = np.zeros((2, whole, *rows_N.shape[1:]), rows_N.dtype)
    parts[0, :half], parts[1, :half] = rows_N[:half], rows_N[half:]
    groups = parts.reshape(2, whole // 16, 16, *rows_N.shape[1:])
    return np.ascontiguousarray(groups.swapaxes(0, 1)).reshape(2 * whole, *rows_N.shape[1:])


def pad_columns(values_N: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return a per-column vector padded with zeros to whole panels."""
    out: npt.NDArray[np.float32] = np.zeros(padded(values_N.shape[0]), np.float32)
    out[: values_N.shape[0]] = values_N
    return out


def pack_nibble_panels(values_NK: npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
    """Return values (or codes) of four bits in panel order, k in the lower bits, k + 1 above."""
    pairs = pack_panels(values_NK).view(np.uint8)
    packed: npt.NDArray[np.uint8] = pairs[..., 1] << np.uint8(4)
    packed |= pairs[..., 0] & np.uint8(0x0F)
    return packed


def pack_groups(
    scale_NG: npt.NDArray[np.float32], zero_NG: npt.NDArray[np.float32] | None
) -> npt.NDArray[np.float32]:
    """Return scales per group of inputs as [N/32, G, 32], or with zeros [N/32, G, 2, 32]."""
    parts = [scale_NG] if zero_NG is None else [scale_NG, zero_NG]
    num_out, groups = scale_NG.shape
    whole: npt.NDArray[np.float32] = np.zeros((padded(num_out), groups, len(parts)), np.float32)
    for place, part in enumerate(parts):
        whole[:num_out, :, place] = part
    panels = whole.reshape(-1, PANEL, groups, len(parts)).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(panels)
