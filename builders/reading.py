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

_PIECE_BYTES = 8 << 20


def read_pieces(
    weights: HfWeights, rows: Rows, dtype: str, columns: slice | None = None
) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yield pieces of a few MiB as (first row within `rows`, values [rows, columns] in `dtype`).

    A vector's pieces are vectors. Raises: CheckpointError, with file, tensor and position, for a
    NaN, an infinity, or a value too large for the dtype.
    """
    info = weights.infos[rows.source]
    itemsize = numpy_dtype(info.dtype).itemsize
    width = 1
    if len(info.shape) > 1:
        width = info.shape[-2] if rows.transposed else info.shape[-1]
    wanted = range(*(columns or slice(None)).indices(width))
    step = max(1, _PIECE_BYTES // (width * itemsize))
    for start in range(rows.start, rows.stop, step):
        block = range(start, min(start + step, rows.stop))
        yield start - rows.start, _converted(weights, rows, block, wanted, dtype)


def read_rows(weights: HfWeights, rows: Rows, dtype: str) -> npt.NDArray[Any]:
    """Return all of `rows` at once. Raises: as `read_pieces`."""
    return np.concatenate([piece for _, piece in read_pieces(weights, rows, dtype)])


def _converted(
    weights: HfWeights, rows: Rows, block: range, columns: range, dtype: str
) -> npt.NDArray[Any]:
    """Return rows `block` of the source in `dtype`."""
    if len(weights.infos[rows.source].shape) == 1:
        values = weights.read_rows(rows.source, block.start, block.stop)
    elif rows.transposed:
        values = np.ascontiguousarray(weights.read_block(rows.source, columns, block).T)
    else:
        values = weights.read_block(rows.source, block, columns)

    def position(index: tuple[int, ...]) -> list[int]:
        """Return where a value stands in the source."""
        where = [index[0] + block.start, *(column + columns.start for column in index[1:])]
        return where[::-1] if rows.transposed else where

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
