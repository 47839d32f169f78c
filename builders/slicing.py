"""One tensor of one rank file: which rows of which Hugging Face tensors it is, and copying them.

Everything goes through pieces of a few MiB, so memory does not depend on the size of a tensor.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from llmc.builders.families.rules import Rows
from llmc.builders.hf.reader import HfWeights
from llmc.builders.reading import read_pieces
from llmc.checkpoint import TensorSpec
from llmc.dtypes import numpy_dtype
from llmc.weights import SafetensorsWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """`count` rows, from `rows` and cut to `columns`, at row `destination`.

    `rows` None stands for rows of zeros.
    """

    rows: Rows | None
    count: int
    destination: int
    columns: slice | None = None


def slices(
    spec: TensorSpec, sources: Sequence[Rows], *, tp_rank: int, tp_size: int
) -> Iterator[Slice]:
    """Yield what makes up the rank's part of `spec`, in order and without gaps.

    The rows of `sources`, one after another, are the whole tensor.
    """
    columns = spec.column_span(tp_rank, tp_size)
    destination = 0
    for start, stop, length in spec.row_spans(tp_rank, tp_size):
        for rows, offset in _cut(sources, start, stop):
            yield Slice(
                rows=rows, count=rows.count, destination=destination + offset, columns=columns
            )
        filled = stop - start
        if filled < length:
            yield Slice(rows=None, count=length - filled, destination=destination + filled)
        destination += length


def _cut(sources: Sequence[Rows], start: int, stop: int) -> Iterator[tuple[Rows, int]]:
    """Yield rows [start, stop) of the sources laid one after another, each with its offset."""
    base = 0
    for rows in sources:
        first, last = max(start, base), min(stop, base + rows.count)
        if first < last:
            yield rows.part(first - base, last - base), first - start
        base += rows.count


def copy_slice(
    part: Slice,
    weights: HfWeights,
    writer: SafetensorsWriter,
    name: str,
    advance: Callable[[int], None],
) -> None:
    """Copy `part` into tensor `name` of `writer`, converted to its dtype; report bytes written.

    Raises: CheckpointError, with file, tensor and position, for a NaN, an infinity, or a value too
    large for the dtype.
    """
    wanted = writer.infos[name]
    if part.rows is None:
        zeros = np.zeros((part.count, *wanted.shape[1:][-1:]), numpy_dtype(wanted.dtype))
        writer.write_rows(name, part.destination, zeros)
        advance(zeros.nbytes)
        return
    for start, values in read_pieces(weights, part.rows, wanted.dtype, part.columns):
        writer.write_rows(name, part.destination + start, values)
        advance(values.nbytes)
