"""Cuts sequences into ragged steps as an in-flight batch would, over scattered KV blocks."""

from collections.abc import Iterator, Sequence

import numpy as np

from llmc.runtime.batch import Batch, Int32Array

TOKENS_PER_BLOCK = 4


def ragged_steps(
    sequences: Sequence[Sequence[int]],
    chunks: Sequence[Sequence[int]],
    *,
    seed: int = 0,
    tokens_per_block: int = TOKENS_PER_BLOCK,
    prompts: Sequence[int] | None = None,
) -> Iterator[tuple[Batch, list[tuple[int, int]]]]:
    """Yield (batch, [(sequence, position) of each row]) per step; every row wants logits.

    `chunks[step][sequence]` tokens of each sequence go into a step, 0 leaves it out. `prompts` are
    the lengths of their prompts; None: a sequence is all prompt.
    """
    done = [0] * len(sequences)
    tables = block_tables([len(sequence) for sequence in sequences], seed, tokens_per_block)
    for step in chunks:
        rows: list[tuple[int, int]] = []
        starts, lens, active = [0], [], []
        for sequence, count in enumerate(step):
            if count == 0:
                continue
            rows += [(sequence, done[sequence] + i) for i in range(count)]
            done[sequence] += count
            starts.append(len(rows))
            lens.append(done[sequence])
            active.append(sequence)
        yield (
            Batch(
                token_ids=_int32([sequences[s][p] for s, p in rows]),
                positions=_int32([p for _, p in rows]),
                query_start=_int32(starts),
                context_lens=_int32(lens),
                block_tables=np.ascontiguousarray(tables[active]),
                logits_rows=_int32(range(len(rows))),
                prompt_lens=_int32(
                    [len(sequences[s]) if prompts is None else prompts[s] for s in active]
                ),
            ),
            rows,
        )


def block_tables(lengths: Sequence[int], seed: int, tokens_per_block: int) -> Int32Array:
    """Return tables [S, max_blocks] of distinct blocks in random order."""
    blocks = -(-max(lengths) // tokens_per_block)
    order = np.random.default_rng(seed).permutation(len(lengths) * blocks)
    return order.reshape(len(lengths), blocks).astype(np.int32)


def _int32(values: Sequence[int] | range) -> Int32Array:
    return np.asarray(values, dtype=np.int32)
