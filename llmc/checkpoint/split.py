"""Tensors of the whole model and the part of each that a rank holds."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of `count` units of `size` rows (or columns) each, split over ranks by whole units.

    With fewer units than ranks, ranks share them: rank r holds unit r * count // tp_size. `padded`:
    the count is rounded up to a multiple of tp_size with zeros.
    """

    count: int
    size: int = 1
    padded: bool = False

    @property
    def length(self) -> int:
        return self.count * self.size

    def span(self, tp_rank: int, tp_size: int) -> tuple[int, int]:
        """Return [start, stop) of the rank's part, within this segment and without padding."""
        if self.count < tp_size and not self.padded:
            unit = tp_rank * self.count // tp_size
            return unit * self.size, (unit + 1) * self.size
        per_rank = -(-self.count // tp_size)
        start, stop = tp_rank * per_rank, (tp_rank + 1) * per_rank
        return min(start, self.count) * self.size, min(stop, self.count) * self.size

    def local_length(self, tp_size: int) -> int:
        """Return the length of every rank's part, padding included."""
        return max(1, -(-self.count // tp_size)) * self.size

    def divided(self, factor: int, tp_size: int) -> "Segment | None":
        """Return this segment of a tensor that has one row for `factor` of these.

        None when a rank's part would not be whole rows.
        """
        if self.size % factor == 0:
            return Segment(count=self.count, size=self.size // factor, padded=self.padded)
        if self.count >= tp_size and self.length % (factor * tp_size) == 0:
            return Segment(count=self.length // factor, padded=self.padded)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor of the whole model and how it is split.

    `name` has the global layer number; `layer` is that number, None outside the layers. `shape` is
    the unsplit, unpadded shape; the first of three dimensions counts experts. `axis` is the one
    that is split (None: every rank holds all of it) and `segments` cover it in order, each split by
    itself. `dtype` None is the model's.
    """

    name: str
    shape: tuple[int, ...]
    axis: int | None = None
    segments: tuple[Segment, ...] = ()
    layer: int | None = None
    dtype: str | None = None

    def local_shape(self, tp_size: int) -> tuple[int, ...]:
        """Return the shape every rank of a tensor-parallel group holds."""
        if self.axis is None:
            return self.shape
        length = sum(segment.local_length(tp_size) for segment in self.segments)
        return (*self.shape[: self.axis], length, *self.shape[self.axis + 1 :])

    def local_name(self, first_layer: int) -> str:
        """Return the name in the file of a stage that begins at `first_layer`, there layer 0."""
        if self.layer is None:
            return self.name
        return self.name.replace(f".{self.layer}.", f".{self.layer - first_layer}.", 1)

    @property
    def splits_columns(self) -> bool:
        """Whether it is split along the last of several dimensions."""
        return self.axis is not None and self.axis == len(self.shape) - 1 > 0

    def column_span(self, tp_rank: int, tp_size: int) -> slice | None:
        """Return the columns of the last dimension that the rank holds, None when all."""
        if not self.splits_columns:
            return None
        assert len(self.segments) == 1 and not self.segments[0].padded, self.name
        return slice(*self.segments[0].span(tp_rank, tp_size))

    def row_spans(self, tp_rank: int, tp_size: int) -> Iterator[tuple[int, int, int]]:
        """Yield the runs of rows that the rank holds as (start, stop, length), in order.

        Rows are those of the last dimension of the whole tensor; a run is padded with zeros to
        its length.
        """
        rows = prod(self.shape[: len(self.shape[1:]) or 1])
        if self.axis is None or self.splits_columns:
            yield 0, rows, rows
            return
        per_expert = self.shape[self.axis]
        assert self.axis == max(0, len(self.shape) - 2), (self.name, self.axis)
        for base in range(0, rows, per_expert):
            for segment in self.segments:
                start, stop = segment.span(tp_rank, tp_size)
                yield base + start, base + stop, segment.local_length(tp_size)
                base += segment.length

    def part(self, whole: npt.NDArray[Any], tp_rank: int, tp_size: int) -> npt.NDArray[Any]:
        """Return the rank's part of the whole tensor, padded with zeros, in row-major order."""
        assert whole.shape == self.shape, (self.name, whole.shape, self.shape)
        if self.axis is None or tp_size == 1:
            return np.ascontiguousarray(whole).reshape(whole.shape)
        local: npt.NDArray[Any] = np.zeros(self.local_shape(tp_size), whole.dtype)
        source, target = np.moveaxis(whole, self.axis, 0), np.moveaxis(local, self.axis, 0)
        base = position = 0
        for segment in self.segments:
            start, stop = segment.span(tp_rank, tp_size)
            target[position : position + stop - start] = source[base + start : base + stop]
            base, position = base + segment.length, position + segment.local_length(tp_size)
        return local
