from llmc.builders.families.rules import Rows
from llmc.builders.slicing import Slice, slices
from llmc.checkpoint import Segment, TensorSpec

QKV = TensorSpec(
    name="qkv",
    shape=(4 * 8 + 2 * 8 + 2 * 8, 5),
    axis=0,
    segments=(Segment(count=4, size=8), Segment(count=2, size=8), Segment(count=2, size=8)),
)


def rows(source: str, stop: int, start: int = 0) -> Rows:
    return Rows(source=source, shape=(), start=start, stop=stop)


def part(
    source: str | None, start: int, stop: int, destination: int, columns: slice | None = None
) -> Slice:
    return Slice(
        rows=None if source is None else rows(source, stop, start),
        count=stop - start,
        destination=destination,
        columns=columns,
    )


def test_each_source_of_a_fused_tensor_is_split_by_itself() -> None:
    sources = [rows("q", 32), rows("k", 16), rows("v", 16)]
    assert list(slices(QKV, sources, tp_rank=1, tp_size=2)) == [
        part("q", 16, 32, 0),
        part("k", 8, 16, 16),
        part("v", 8, 16, 24),
    ]


def test_a_source_that_is_fused_already_is_cut_at_the_same_places() -> None:
    assert list(slices(QKV, [rows("qkv", 64)], tp_rank=1, tp_size=2)) == [
        part("qkv", 16, 32, 0),
        part("qkv", 40, 48, 16),
        part("qkv", 56, 64, 24),
    ]


def test_ranks_share_kv_heads() -> None:
    sources = [rows("q", 32), rows("k", 16), rows("v", 16)]
    assert list(slices(QKV, sources, tp_rank=2, tp_size=4)) == [
        part("q", 16, 24, 0),
        part("k", 8, 16, 8),
        part("v", 8, 16, 16),
    ]


def test_a_slice_may_span_sources() -> None:
    spec = TensorSpec(name="x", shape=(10, 5), axis=0, segments=(Segment(count=10),))
    assert list(slices(spec, [rows("a", 4), rows("b", 6)], tp_rank=0, tp_size=2)) == [
        part("a", 0, 4, 0),
        part("b", 0, 1, 4),
    ]


def test_padding_is_rows_of_zeros_after_the_last() -> None:
    spec = TensorSpec(name="x", shape=(5, 3), axis=0, segments=(Segment(count=5, padded=True),))
    assert list(slices(spec, [rows("a", 5)], tp_rank=2, tp_size=4)) == [
        part("a", 4, 5, 0),
        part(None, 1, 2, 1),
    ]
    assert list(slices(spec, [rows("a", 5)], tp_rank=3, tp_size=4)) == [part(None, 0, 2, 0)]


def test_columns_are_cut_from_whole_rows() -> None:
    spec = TensorSpec(name="x", shape=(3, 8), axis=1, segments=(Segment(count=4, size=2),))
    assert list(slices(spec, [rows("a", 3)], tp_rank=1, tp_size=2)) == [
        part("a", 0, 3, 0, slice(4, 8))
    ]


def test_what_is_not_split_is_whole_on_every_rank() -> None:
    spec = TensorSpec(name="x", shape=(3,))
    assert list(slices(spec, [rows("a", 3)], tp_rank=1, tp_size=2)) == [part("a", 0, 3, 0)]
