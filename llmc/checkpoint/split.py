"""Tensors of the whole model and the part of each that a rank holds."""

from collections.abc import Iterator
from dataclasses import dataclass
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
    the unsplit, unpadded shape. `axis` is the one that is split (None: every rank holds all of it)
    and `segments` cover it in order, each split by itself. `dtype` None is the model's.

    `expert_parallel` is for tensors whose first dimension counts experts, whole ones of which are
    dealt out to so many ranks; `axis` is then split over tp_size / expert_parallel.
    Source: NVIDIA/TensorRT-LLM tensorrt_llm/mapping.py (0.17): moe_ep_rank = tp_rank % ep,
    moe_tp_rank = tp_rank // ep, and the experts of a rank are neighbours.
    """

    name: str
    shape: tuple[int, ...]
    axis: int | None = None
    segments: tuple[Segment, ...] = ()
    layer: int | None = None
    dtype: str | None = None
    expert_parallel: int | None = None

    def local_shape(self, tp_size: int) -> tuple[int, ...]:
        """Return the shape every rank of a tensor-parallel group holds."""
        shape = [*self.shape]
        if self.axis is not None:
            _, size = self._place(0, tp_size)
            shape[self.axis] = sum(segment.local_length(size) for segment in self.segments)
        if self.expert_parallel is not None:
            shape[0] //= self.expert_parallel
        return tuple(shape)

    def _place(self, tp_rank: int, tp_size: int) -> tuple[int, int]:
        """Return which of how many parts of `axis` the rank has."""
        ep = self.expert_parallel or 1
        return tp_rank // ep, tp_size // ep

    def _experts(self, tp_rank: int) -> range:
        """Return the rank's experts; of a tensor that is not stacked, the one matrix there is."""
        if self.expert_parallel is None:
            return range(1)
        count = self.shape[0] // self.expert_parallel
        first = tp_rank % self.expert_parallel * count
        return range(first, first + count)

    def local_name(self, first_layer: int) -> str:
        """Return the name in the file of a stage that begins at `first_layer`, there layer 0."""
        if self.layer is None:
            return self.name
        return self.name.replace(f".{self.layer}.", f".{self.layer - first_layer}.", 1)

    @property
    def is_matrix(self) -> bool:
        """Whether it is a matrix, or one of each expert, and no vector."""
        return len(self.shape) > (1 if self.expert_parallel is None else 2)

    @property
    def splits_columns(self) -> bool:
        """Whether it is split along the columns: the last dimension of a matrix."""
        return self.is_matrix and self.axis == len(self.shape) - 1

    def column_span(self, tp_rank: int, tp_size: int) -> slice | None:
        """Return the columns of the last dimension that the rank holds, None when all."""
        if not self.splits_columns:
            return None
        assert len(self.segments) == 1 and not self.segments[0].padded, self.name
        return slice(*self.segments[0].span(*self._place(tp_rank, tp_size)))

    def row_spans(self, tp_rank: int, tp_size: int) -> Iterator[tuple[int, int, int]]:
        """Yield the runs of rows that the rank holds as (start, stop, length), in order.

        Rows are those of the last dimension of the whole tensor, and the numbers of vectors; a run
        is padded with zeros to its length.
        """
        row_axis = 0 if self.expert_parallel is None else 1
        rows = self.shape[row_axis]
        place = self._place(tp_rank, tp_size)
        for expert in self._experts(tp_rank):
            base = expert * rows
            if self.axis is None or self.splits_columns:
                yield base, base + rows, rows
                continue
            assert self.axis == row_axis, (self.name, self.axis)
            for segment in self.segments:
                start, stop = segment.span(*place)
                yield base + start, base + stop, segment.local_length(place[1])
                base += segment.length

    def part(self, whole: npt.NDArray[Any], tp_rank: int, tp_size: int) -> npt.NDArray[Any]:
        """Return the rank's part of the whole tensor, padded with zeros, in row-major order."""
        assert whole.shape == self.shape, (self.name, whole.shape, self.shape)
        if self.expert_parallel is not None:
            experts = self._experts(tp_rank)
            whole = whole[experts.start : experts.stop]
        place, size = self._place(tp_rank, tp_size)
        if self.axis is None or size == 1:
            return np.ascontiguousarray(whole).reshape(whole.shape)
        local: npt.NDArray[Any] = np.zeros(self.local_shape(tp_size), whole.dtype)
        source, target = np.moveaxis(whole, self.axis, 0), np.moveaxis(local, self.axis, 0)
        base = position = 0
        for segment in self.segments:
            start, stop = segment.span(place, size)
            target[position : position + stop - start] = source[base + start : base + stop]
            base, position = base + segment.length, position + segment.local_length(size)
        return local
