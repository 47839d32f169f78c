"""GPTQ: round one input channel after the other and let the rest make up for its error.

Channels go in the order of their importance (the Hessian's diagonal); groups, however, are fixed
runs of channels with scales known before, because an engine reads no permutation. Scales and zero
points are rounded as they will be stored before the first channel is, so that no error is left out.

Source: GPTQ, arXiv 2210.17323, algorithm 1, and its published implementation (act_order with
static_groups).

Legend: out, in are a module's features; G groups of g input channels; H [in, in] the Hessian.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.builders.quantize.rounding import choice_for, tensors_of
from llmc.builders.quantize.site import Algorithm, Floats, Settings, Site, Tensors
from llmc.quant.format import Elements, load_format

_BLOCK = 128
"""Channels between updates of all that follow."""

_EXACT = 8192
"""Up to so many channels the Hessian is factored in float64; beyond, that would take too much."""

Order = npt.NDArray[np.intp]


def quantize(site: Site, settings: Settings) -> Tensors:
    """Round the modules of the site against its one Hessian."""
    assert site.stats.hessian is not None
    order, inverse = inverse_factor(site.stats.hessian, settings.damping)
    form = load_format(settings.algo)
    tensors: Tensors = {}
    for module in site.modules:
        choice = choice_for(module, settings)
        grid = form.encode(module.weight, choice)
        elements = round_in_order(module.weight, grid, order, inverse)
        tensors |= tensors_of(module.name, settings, choice, elements)
    return tensors


def inverse_factor(hessian: Floats, damping: float) -> tuple[Order, Floats]:
    """Return the order of channels and U [in, in], upper triangular, U^T U = the inverse Hessian.

    Rows and columns of U are in that order. `damping` times the mean diagonal is added to the
    diagonal first; a channel that was always zero gets 1.
    """
    diagonal = hessian.diagonal()
    order = np.argsort(-diagonal, kind="stable")
    dtype: type[Any] = np.float64 if len(hessian) <= _EXACT else np.float32
    damped = hessian[np.ix_(order, order)].astype(dtype, copy=False)
    added = damping * float(diagonal.mean(dtype=np.float64))
    index = np.arange(len(damped))
    damped[index, index] += np.where(diagonal[order] == 0, 1.0, max(added, 1e-12))
    # U^T U = H^-1 with U upper: turn H round, factor, invert and turn back.
    lower = np.linalg.cholesky(damped[::-1, ::-1])
    del damped
    invert_lower(lower)
    return order, np.ascontiguousarray(lower[::-1, ::-1], np.float32)


def invert_lower(lower: npt.NDArray[Any]) -> None:
    """Invert a lower triangular matrix in place: halves first, then the corner between them."""
    size = len(lower)
    if size <= _BLOCK:
        lower[...] = np.tril(np.linalg.inv(lower))
        return
    half = size // 2
    first, second, corner = lower[:half, :half], lower[half:, half:], lower[half:, :half]
    invert_lower(first)
    invert_lower(second)
    corner[...] = -(second @ (corner @ first))


def scratch_bytes(num_out: int, num_in: int) -> int:
    """Return three copies of the Hessian as it is factored, U, and three of the weight."""
    return 4 * num_in**2 * (7 if num_in <= _EXACT else 4) + 12 * num_out * num_in


def round_in_order(weight: Floats, grid: Elements, order: Order, inverse: Floats) -> Elements:
    """Return the elements of `weight` [out, in] on the grid's scales and zero points.

    `inverse` is U of `inverse_factor`.
    """
    assert grid.zero is not None
    num_out, num_in = weight.shape
    size = num_in // grid.scale.shape[1]
    left: Floats = np.ascontiguousarray(weight[:, order].T)  # [in, out]: channels are rows
    scale = np.where(grid.scale > 0, grid.scale, np.float32(1)).T
    zero = grid.zero.T
    values = np.empty((num_in, num_out), np.int8)
    errors: Floats = np.empty((_BLOCK, num_out), np.float32)
    for start in range(0, num_in, _BLOCK):
        stop = min(start + _BLOCK, num_in)
        for index in range(start, stop):
            group = order[index] // size
            codes = np.clip(np.rint((left[index] - zero[group]) / scale[group]), -8, 7)
            values[order[index]] = codes
            error = (left[index] - (codes * scale[group] + zero[group])) / inverse[index, index]
            errors[index - start] = error
            left[index + 1 : stop] -= np.outer(inverse[index, index + 1 : stop], error)
        left[stop:] -= inverse[start:stop, stop:].T @ errors[: stop - start]
    return Elements(values=np.ascontiguousarray(values.T), scale=grid.scale, zero=grid.zero)


ALGORITHM = Algorithm(
    quantize=quantize, needs_hessian=True, propagates=True, scratch_bytes=scratch_bytes
)
