import numpy as np
import pytest

from llmc.runtime.batch import Batch
from llmc.runtime.microbatch import MIN_PART_TOKENS, cut


def batch_of(lengths: list[int], seed: int = 0) -> Batch:
    """Return a batch of sequences of these many new tokens, most of which want logits."""
    generator = np.random.default_rng(seed)
    starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    last = starts[1:] - np.int32(1)
    return Batch(
        token_ids=generator.integers(0, 99, starts[-1], dtype=np.int32),
        positions=generator.integers(0, 99, starts[-1], dtype=np.int32),
        query_start=starts,
        context_lens=np.array(lengths, np.int32) + np.int32(7),
        block_tables=generator.integers(0, 9, (len(lengths), 4), dtype=np.int32),
        logits_rows=last[generator.random(len(lengths)) < 0.8],
        prompt_lens=np.array(lengths, np.int32),
    )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("num_parts", [2, 3, 4])
def test_parts_in_a_row_are_the_batch(seed: int, num_parts: int) -> None:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 90, generator.integers(1, 12)).tolist()
    batch = batch_of(lengths, seed)
    parts = cut(batch, num_parts)
    assert 1 <= len(parts) <= num_parts
    for name in ("token_ids", "positions", "context_lens", "block_tables"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(joined, getattr(batch, name))
    first = 0
    rows: list[int] = []
    for part in parts:
        assert part.num_sequences > 0
        assert part.query_start[0] == 0 and part.query_start[-1] == part.num_tokens
        rows += (part.logits_rows + first).tolist()
        first += part.num_tokens
        for array in (getattr(part, field) for field in Batch.__dataclass_fields__):
            assert array.dtype == np.int32 and array.flags.c_contiguous
    assert rows == batch.logits_rows.tolist()


def test_parts_have_about_as_many_tokens() -> None:
    assert [part.num_tokens for part in cut(batch_of([40] * 8), 2)] == [160, 160]
    assert [part.num_tokens for part in cut(batch_of([200, 40, 40, 40]), 2)] == [200, 120]
    assert [part.num_tokens for part in cut(batch_of([1] * 96), 3)] == [32, 32, 32]


def test_what_is_too_small_stays_whole() -> None:
    assert len(cut(batch_of([1] * (2 * MIN_PART_TOKENS - 1)), 2)) == 1
    assert len(cut(batch_of([500]), 4)) == 1
    assert len(cut(batch_of([80, 80]), 1)) == 1
