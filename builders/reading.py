"""Values of Hugging Face tensors as the rules of a family name them, checked on their way.

Every value is looked at before and after it is converted, and what is wrong is named by file,
tensor and position.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.builders.casting import cast, first_not_finite
from llmc.builders.families.rules import Rows
from llmc.builders.hf.reader import HfWeights
from llmc.dtypes import numpy_dtype
from llmc.errors import CheckpointError
from llmc.quant import mxfp4

_PIECE_BYTES = 8 << 20


def read_pieces(
    weights: HfWeights, rows: Rows, dtype: str, columns: slice | None = None
) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yield pieces of a few MiB as (first row within `rows`, values [rows, columns] in `dtype`).

    A vector's pieces are vectors. Raises: CheckpointError, with file, tensor and position, for a
    NaN, an infinity, or a value too large for the dtype.
    """
    shape = _matrix_shape(weights, rows)
    wanted = range(*(columns or slice(None)).indices(shape[-1]))
    itemsize = numpy_dtype("float32" if rows.scales else weights.infos[rows.source].dtype).itemsize
    # Rows that are skipped are read with the others.
    most = max(1, _PIECE_BYTES // (shape[-1] * itemsize * rows.step))
    done = 0
    for block in _runs(rows.range, shape[-2] if rows.transposed else rows.stop, most):
        yield done, _converted(weights, rows, block, wanted, dtype)
        done += len(block)


def read_rows(weights: HfWeights, rows: Rows, dtype: str) -> npt.NDArray[Any]:
    """Return all of `rows` at once. Raises: as `read_pieces`."""
    return np.concatenate([piece for _, piece in read_pieces(weights, rows, dtype)])


def _matrix_shape(weights: HfWeights, rows: Rows) -> tuple[int, ...]:
    """Return the source's shape with rows in the last dimension but one, columns in the last."""
    shape = weights.infos[rows.source].shape
    if rows.vector:
        return (*shape, 1)
    if rows.scales:
        return (*shape[:-2], shape[-2] * mxfp4.BLOCK)
    return (*shape[:-2], shape[-1], shape[-2]) if rows.transposed else shape


def _runs(whole: range, height: int, most: int) -> Iterator[range]:
    """Cut `whole` into runs of at most `most`, each within one of the matrices of `height` rows."""
    while whole:
        border = (whole.start // height + 1) * height
        end = min(most, len(range(whole.start, border, whole.step)))
        yield whole[:end]
        whole = whole[end:]


def _read(weights: HfWeights, rows: Rows, block: range, columns: range) -> npt.NDArray[Any]:
    """Return rows `block` of the source as they are, MXFP4 in float32."""
    source, step, span = rows.source, rows.step, range(block[0], block[-1] + 1)
    if rows.vector:
        return weights.read_numbers(source, span.start, span.stop)[::step]
    if rows.scales:
        blocks, half = weights.infos[source].shape[-2:]
        bounds = range(span.start * blocks, span.stop * blocks)
        codes = weights.read_block(source, bounds, range(half)).reshape(-1, blocks, half)
        scales = weights.read_block(rows.scales, span, range(blocks))
        return mxfp4.decode(codes[::step], scales[::step])[:, columns.start : columns.stop]
    if rows.transposed:
        width, height = weights.infos[source].shape[-2:]
        number, start = divmod(span.start, height)
        across = range(number * width + columns.start, number * width + columns.stop)
        down = range(start, start + len(span))
        return weights.read_block(source, across, down)[:, ::step].T
    return weights.read_block(source, span, columns)[::step]


def _converted(
    weights: HfWeights, rows: Rows, block: range, columns: range, dtype: str
) -> npt.NDArray[Any]:
    """Return rows `block` of the source in `dtype`."""
    values = np.ascontiguousarray(_read(weights, rows, block, columns))

    def position(index: tuple[int, ...]) -> list[int]:
        """Return where a value stands in the source; in MXFP4, as if each had a place."""
        shape = _matrix_shape(weights, rows)
        column = columns[index[1]] if len(index) > 1 else 0
        place = np.unravel_index(block[index[0]] * shape[-1] + column, shape)
        where = [int(i) for i in place]
        if rows.vector:
            return where[:-1]
        return [*where[:-2], *where[:-3:-1]] if rows.transposed else where

    where = f"{weights.path(rows.source)}: {rows.source}"
    bad = first_not_finite(values)
    if bad is not None:
        raise CheckpointError(
            f"{where}: {float(values[bad])} at {position(bad)}, expected a finite number"
        )
    # In float32, so that the sum is rounded once.
    wide = np.float32(1) + values.astype(np.float32) if rows.plus_one else values
    made = cast(wide, dtype)
    bad = None if made is values else first_not_finite(made)
    if bad is not None:
        largest = float(np.finfo(np.float16).max) if dtype == "float16" else 3.3895e38
        raise CheckpointError(
            f"{where}: {float(values[bad]):g} at {position(bad)},"
            f" expected at most {largest:g} as the dtype is {dtype}",
            hint="choose dtype bfloat16 or float32, which hold larger numbers"
            if dtype == "float16"
            else "choose dtype float32",
        )
    return made
