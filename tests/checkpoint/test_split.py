import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmc.checkpoint import Segment, TensorSpec


@given(
    tp_size=st.sampled_from([1, 2, 4]),
    axis=st.sampled_from([0, 1]),
    heads=st.sampled_from([4, 8]),
    size=st.integers(1, 5),
)
def test_parts_rejoined_segment_by_segment_are_the_whole(
    tp_size: int, axis: int, heads: int, size: int
) -> None:
    segments = (Segment(count=heads, size=size), Segment(count=4, size=size))
    length = sum(segment.length for segment in segments)
    shape = (length, 3) if axis == 0 else (3, length)
    spec = TensorSpec(name="x", shape=shape, axis=axis, segments=segments)
    whole = np.arange(3 * length).reshape(shape)
    parts = [spec.part(whole, rank, tp_size) for rank in range(tp_size)]
    assert all(part.shape == spec.local_shape(tp_size) for part in parts)
    first = heads * size // tp_size
    cut = [np.split(part, [first], axis=axis) for part in parts]
    joined = np.concatenate([half[0] for half in cut] + [half[1] for half in cut], axis=axis)
    np.testing.assert_array_equal(joined, whole)


def test_shared_and_padded_segments() -> None:
    shared = TensorSpec(name="x", shape=(4,), axis=0, segments=(Segment(count=2, size=2),))
    assert [shared.part(np.arange(4), rank, 4).tolist() for rank in range(4)] == [
        [0, 1],
        [0, 1],
        [2, 3],
        [2, 3],
    ]
    padded = TensorSpec(name="x", shape=(5,), axis=0, segments=(Segment(count=5, padded=True),))
    assert padded.part(np.arange(1, 6), 1, 2).tolist() == [4, 5, 0]


@pytest.mark.parametrize(
    ("segment", "factor", "tp_size", "divided"),
    [
        (Segment(count=4, size=64), 2, 2, Segment(count=4, size=32)),
        (Segment(count=9, size=64), 64, 3, Segment(count=9)),
        (Segment(count=4, size=64), 128, 2, Segment(count=2)),
        (Segment(count=4, size=64), 128, 4, None),
        (Segment(count=1536), 128, 4, Segment(count=12)),
        (Segment(count=2, size=6), 4, 4, None),
    ],
)
def test_a_packed_axis_keeps_whole_units(
    segment: Segment, factor: int, tp_size: int, divided: Segment | None
) -> None:
    assert segment.divided(factor, tp_size) == divided


@pytest.mark.parametrize(("ep", "tp_size"), [(1, 2), (2, 2), (2, 4), (4, 4)])
@pytest.mark.parametrize("kind", ["rows", "columns", "bias", "whole"])
def test_experts_are_dealt_out_and_then_split(kind: str, ep: int, tp_size: int) -> None:
    """Rank r holds the neighbours of group r % ep and, of each, slice r // ep."""
    halves = (Segment(count=4), Segment(count=4))
    shape, axis, segments = {
        "rows": ((4, 8, 3), 1, halves),
        "columns": ((4, 3, 8), 2, (Segment(count=8),)),
        "bias": ((4, 8), 1, halves),
        "whole": ((4, 1), None, ()),
    }[kind]
    spec = TensorSpec(name="x", shape=shape, axis=axis, segments=segments, expert_parallel=ep)
    whole = np.arange(np.prod(shape)).reshape(shape)
    for rank in range(tp_size):
        group, piece = rank % ep, rank // ep
        wanted = np.split(whole, ep)[group]
        if axis is not None:
            pieces = tp_size // ep
            runs = np.split(wanted, len(segments), axis=axis)
            wanted = np.concatenate([np.split(run, pieces, axis)[piece] for run in runs], axis)
        part = spec.part(whole, rank, tp_size)
        np.testing.assert_array_equal(part, wanted)
        assert part.shape == spec.local_shape(tp_size)
        # The same by runs of rows, as plain tensors are copied; of vectors each number is a row.
        rows = whole.reshape(-1, 1 if len(shape) == 2 else shape[-1])
        spans = [rows[start:stop] for start, stop, _ in spec.row_spans(rank, tp_size)]
        columns = spec.column_span(rank, tp_size)
        copied = np.concatenate(spans)[:, columns or slice(None)]
        np.testing.assert_array_equal(copied.reshape(wanted.shape), wanted)
