"""Weights of W8A16, W4A16 and W4A16_GPTQ permuted for one GPU generation, and back.

TensorRT-LLM's convert_checkpoint writes these weights as its CUDA kernels read them, and nothing in
the checkpoint says for which: the name of the layout is ours to keep. The declared shape [in, out]
(two INT4 or four to a number) stays, its meaning does not. A layout is applied to each rank's
tensor, after the split.

Legend: K in, N out; a weight as stored is [K, N] of INT8 or [K, N/2] bytes of INT4.

Source: NVIDIA/TensorRT-LLM 0.17 cpp/tensorrt_llm/kernels/cutlass_kernels/cutlass_preprocessors.cpp,
preprocess_weights_for_mixed_gemm, byte for byte (tests/goldens). For compute capability 9.0 version
1.0 changed the layout but not the shapes (tensorrt_llm/quantization/functional.py, the function of
the same name), so that a file for one version gives garbage in the other: hence two names.
sm90-1.x follows that source and has not been compared with files it wrote.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from llmc.errors import UnsupportedError
from llmc.quant.integers import pack_nibbles, unpack_nibbles


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What is done to [K, N], in this order, beside the transposition to [N, K].

    `permutes_rows`: rows within 16 (INT8) or 32 (INT4) are reordered. `interleaves_columns`: tiles
    of 64 rows of 2 (INT8) or 4 (INT4) columns alternate. `biased`: values are stored unsigned, and
    reordered within 32 bits. `versions` are the TensorRT-LLM versions that read it so.
    """

    permutes_rows: bool
    interleaves_columns: bool
    biased: bool
    versions: str


LAYOUTS = {
    "sm80": Layout(
        permutes_rows=True,
        interleaves_columns=True,
        biased=True,
        versions="up to 1.2, compute capability 7.5 to 8.9",
    ),
    "sm90": Layout(
        permutes_rows=False,
        interleaves_columns=False,
        biased=False,
        versions="before 1.0, compute capability 9.0",
    ),
    "sm90-1.x": Layout(
        permutes_rows=True,
        interleaves_columns=False,
        biased=True,
        versions="1.0 to 1.2, compute capability 9.0",
    ),
}

Bits = Literal[4, 8]

# Source: as above, get_permutation_map: where LDSM puts rows of 8- and 4-bit elements.
_ROWS: dict[Bits, tuple[int, ...]] = {
    8: tuple(8 * half + 2 * pair + low for pair in range(4) for half in range(2) for low in (0, 1)),
    4: tuple(
        8 * quarter + 2 * pair + low for pair in range(4) for quarter in range(4) for low in (0, 1)
    ),
}
# Source: as above, add_bias_and_interleave_int8s_inplace and …_int4s_inplace.
_REGISTER: dict[Bits, tuple[int, ...]] = {8: (0, 2, 1, 3), 4: (0, 2, 4, 6, 1, 3, 5, 7)}
_BIAS: dict[Bits, int] = {8: 128, 4: 8}
# Source: 0.17 cpp/tensorrt_llm/cutlass_extensions/include/cutlass_extensions/gemm/kernel/
# mixed_gemm_B_layout.h: tiles of 64 rows, as many columns as fill 128 bytes.
_TILE_ROWS = 64
_COLUMNS: dict[Bits, int] = {8: 2, 4: 4}

MULTIPLE = 64
"""What K and N of each rank must be a multiple of. Source: as above, subbyte_transpose_impl."""


def find_layout(name: str) -> Layout:
    """Return a layout by name. Raises: UnsupportedError naming the known ones."""
    if name not in LAYOUTS:
        raise UnsupportedError(f"unknown layout {name!r}; known: {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


def arrange(weight: npt.NDArray[Any], layout: str, *, bits: Bits) -> npt.NDArray[Any]:
    """Return a stored weight [K, …] of one rank permuted by `layout`; dtype and shape stay.

    With a third axis in front (experts) each matrix is taken by itself; mixed-GEMM kernels of
    experts have the layout of sm80 on compute capability 9.0 as well (source as above,
    force_interleave).
    """
    if weight.ndim == 3:
        layout = _of_experts(layout)
        return np.stack([arrange(expert, layout, bits=bits) for expert in weight])
    form = find_layout(layout)
    values = _values(weight, bits)
    num_in, num_out = values.shape
    assert num_in % MULTIPLE == 0 and num_out % MULTIPLE == 0, values.shape
    if form.permutes_rows:
        rows = _ROWS[bits]
        values = values.reshape(-1, len(rows), num_out)[:, rows].reshape(num_in, num_out)
    flat = np.ascontiguousarray(values.T)
    if form.interleaves_columns:
        tiles = flat.reshape(-1, _COLUMNS[bits], num_in // _TILE_ROWS, _TILE_ROWS)
        flat = np.ascontiguousarray(tiles.transpose(0, 2, 1, 3))
    if form.biased:
        order = _REGISTER[bits]
        flat = flat.reshape(-1, len(order))[:, order]
        flat = (flat.view(np.uint8) + np.uint8(_BIAS[bits])).view(np.int8)
    return _stored(flat.reshape(num_in, num_out), weight, bits)


def restore(weight: npt.NDArray[Any], layout: str, *, bits: Bits) -> npt.NDArray[Any]:
    """Undo `arrange`."""
    if weight.ndim == 3:
        layout = _of_experts(layout)
        return np.stack([restore(expert, layout, bits=bits) for expert in weight])
    form = find_layout(layout)
    flat = _values(weight, bits)
    num_in, num_out = flat.shape
    if form.biased:
        order = np.argsort(_REGISTER[bits])
        flat = (flat.view(np.uint8) - np.uint8(_BIAS[bits])).view(np.int8)
        flat = flat.reshape(-1, len(order))[:, order]
    if form.interleaves_columns:
        tiles = flat.reshape(-1, num_in // _TILE_ROWS, _COLUMNS[bits], _TILE_ROWS)
        flat = tiles.transpose(0, 2, 1, 3)
    values = flat.reshape(num_out, num_in).T
    if form.permutes_rows:
        rows = np.argsort(_ROWS[bits])
        values = values.reshape(-1, len(rows), num_out)[:, rows]
    return _stored(np.ascontiguousarray(values).reshape(num_in, num_out), weight, bits)


def _of_experts(layout: str) -> str:
    return "sm80" if layout.startswith("sm90") else layout


def _values(weight: npt.NDArray[Any], bits: Bits) -> npt.NDArray[np.int8]:
    """Return one element per byte, [K, N]."""
    stored = np.ascontiguousarray(weight).view(np.int8)
    return unpack_nibbles(stored, 1) if bits == 4 else stored


def _stored(values: npt.NDArray[np.int8], like: npt.NDArray[Any], bits: Bits) -> npt.NDArray[Any]:
    packed = pack_nibbles(values, 1) if bits == 4 else values
    return packed.view(like.dtype)
