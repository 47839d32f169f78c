"""A step's batch cut into parts, so that the stages of a pipeline work at the same time."""

from itertools import pairwise

import numpy as np

from llmc.runtime.batch import Batch

MIN_PART_TOKENS = 32
"""A smaller part costs a stage as much as a larger one: the time its weights take to be read."""


def cut(batch: Batch, num_parts: int) -> list[Batch]:
    """Cut a batch between sequences into at most `num_parts` parts of about as many tokens.

    Rows keep their order, so the parts' logits in a row are the batch's. The cut depends on nothing
    but the batch: every rank finds the same one.
    """
    num_parts = min(num_parts, batch.num_tokens // MIN_PART_TOKENS, batch.num_sequences)
    if num_parts < 2:
        return [batch]
    wanted = np.arange(1, num_parts) * batch.num_tokens / num_parts
    after = np.searchsorted(batch.query_start, wanted)
    before = after - 1
    nearer = wanted - batch.query_start[before] <= batch.query_start[after] - wanted
    cuts = sorted({0, *np.where(nearer, before, after).tolist(), batch.num_sequences})
    return [_part(batch, first, last) for first, last in pairwise(cuts)]


def _part(batch: Batch, first: int, last: int) -> Batch:
    """Return sequences `first` to `last` as a batch."""
    start, end = (int(at) for at in batch.query_start[[first, last]])
    rows = batch.logits_rows
    return Batch(
        token_ids=batch.token_ids[start:end],
        positions=batch.positions[start:end],
        query_start=batch.query_start[first : last + 1] - np.int32(start),
        context_lens=batch.context_lens[first:last],
        block_tables=batch.block_tables[first:last],
        logits_rows=rows[(start <= rows) & (rows < end)] - np.int32(start),
        prompt_lens=batch.prompt_lens[first:last],
    )
