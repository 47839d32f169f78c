"""One tensor of one rank file: which rows of which Hugging Face tensors it is, and copying them.

Everything goes through pieces of a few MiB, so memory does not depend on the size of a tensor.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.builders.casting import cast, first_not_finite
from llmc.builders.hf.reader import HfWeights
from llmc.checkpoint import TensorSpec
from llmc.dtypes import numpy_dtype
from llmc.errors import CheckpointError
from llmc.weights import SafetensorsWriter

_PIECE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Rows [start, stop) of tensor `source`, cut to `columns`, at row `destination`.

    A source of None stands for rows of zeros.
    """

    source: str | None
    start: int
    stop: int
    destination: int
    columns: slice | None = None


def slices(
    spec: TensorSpec, sources: Sequence[tuple[str, int]], *, tp_rank: int, tp_size: int
) -> Iterator[Slice]:
    """Yield what makes up the rank's part of `spec`, in order and without gaps.

    `sources` are names and numbers of rows; their rows, one after another, are the whole tensor.
    """
    if spec.axis == 0:
        base = destination = 0
        for segment in spec.segments:
            start, stop = segment.span(tp_rank, tp_size)
            yield from _rows(sources, base + start, base + stop, destination)
            filled, length = stop - start, segment.local_length(tp_size)
            if filled < length:
                yield Slice(
                    source=None, start=filled, stop=length, destination=destination + filled
                )
            base, destination = base + segment.length, destination + length
        return
    columns = None
    if spec.axis == 1:
        assert len(spec.segments) == 1 and not spec.segments[0].padded, spec.name
        columns = slice(*spec.segments[0].span(tp_rank, tp_size))
    destination = 0
    for source, length in sources:
        yield Slice(source=source, start=0, stop=length, destination=destination, columns=columns)
        destination += length


def _rows(
    sources: Sequence[tuple[str, int]], start: int, stop: int, destination: int
) -> Iterator[Slice]:
    """Yield rows [start, stop) of the sources laid one after another."""
    base = 0
    for source, length in sources:
        first, last = max(start, base), min(stop, base + length)
        if first < last:
            yield Slice(
                source=source,
                start=first - base,
                stop=last - base,
                destination=destination + first - start,
            )
        base += length


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
    row_shape = wanted.shape[1:]
    if part.source is None:
        zeros = np.zeros((part.stop - part.start, *row_shape), numpy_dtype(wanted.dtype))
        writer.write_rows(name, part.destination, zeros)
        advance(zeros.nbytes)
        return
    info = weights.infos[part.source]
    row_bytes = prod(info.shape[1:]) * numpy_dtype(info.dtype).itemsize
    step = max(1, _PIECE_BYTES // row_bytes)
    for start in range(part.start, part.stop, step):
        rows = weights.read_rows(part.source, start, min(start + step, part.stop))
        if part.columns is not None:
            rows = np.ascontiguousarray(rows[:, part.columns])
        values = _convert(rows, wanted.dtype, weights, part, start)
        writer.write_rows(name, part.destination + start - part.start, values)
        advance(values.nbytes)


def _convert(
    rows: npt.NDArray[Any], dtype: str, weights: HfWeights, part: Slice, first_row: int
) -> npt.NDArray[Any]:
    assert part.source is not None
    where = f"{weights.path(part.source)}: {part.source}"
    bad = first_not_finite(rows)
    if bad is not None:
        raise CheckpointError(
            f"{where}: {float(rows[bad])} at {_position(bad, part, first_row)},"
            " expected a finite number"
        )
    values = cast(rows, dtype)
    bad = None if values is rows else first_not_finite(values)
    if bad is not None:
        largest = float(np.finfo(np.float16).max) if dtype == "float16" else 3.3895e38
        raise CheckpointError(
            f"{where}: {float(rows[bad]):g} at {_position(bad, part, first_row)},"
            f" expected at most {largest:g} as the dtype is {dtype}",
            hint="choose dtype bfloat16 or float32, which hold larger numbers"
            if dtype == "float16"
            else "choose dtype float32",
        )
    return values


def _position(index: tuple[int, ...], part: Slice, first_row: int) -> list[int]:
    row, *rest = index
    if part.columns is not None:
        rest[0] += part.columns.start
    return [first_row + row, *rest]
