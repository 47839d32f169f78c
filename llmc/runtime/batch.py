"""The ragged batch of one step: int32 arrays, all that crosses from scheduler to engine."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """T new tokens of S sequences; L of the tokens want logits.

    Sequence s owns the tokens `query_start[s]:query_start[s + 1]`, at consecutive positions that
    end at `context_lens[s] - 1`. The KV of its position p lives in slot `p % tokens_per_block` of
    block `block_tables[s, p // tokens_per_block]`; entries past the last used block are unspecified
    but valid block numbers. A block shared by several sequences is full and only read. Arrays are
    C-contiguous and may be reused by the caller once `Engine.forward` has returned.
    """

    token_ids: Int32Array
    """[T]"""
    positions: Int32Array
    """[T] position of each token in its sequence, from 0"""
    query_start: Int32Array
    """[S + 1] from 0 to T"""
    context_lens: Int32Array
    """[S] tokens in the KV cache after this step, the new ones included"""
    block_tables: Int32Array
    """[S, max_blocks]"""
    logits_rows: Int32Array
    """[L] ascending rows of T; L may be 0 (a step of unfinished context chunks only)"""
    prompt_lens: Int32Array
    """[S] tokens of each sequence's prompt as it came, however much of it this step computes:
    rotary scalings that change with the length take max(prompt length, position + 1), so that
    chunks, batches and preemption change nothing"""

    @property
    def num_tokens(self) -> int:
        return int(self.token_ids.shape[0])

    @property
    def num_sequences(self) -> int:
        return int(self.context_lens.shape[0])
