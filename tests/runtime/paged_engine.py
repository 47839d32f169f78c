"""A tiny real attention model over a paged KV pool, to test everything above an engine.

It is honest: keys and values are written and read through the block tables only, unwritten slots
are NaN, and positions enter the model, so that a wrong block, position or length changes the
output. Every token is computed by itself in float64, so that its logits are the same bits however
the tokens are batched or chunked. `recompute_logits` is the same model without pages or batches.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from llmc.runtime.batch import Batch
from llmc.runtime.engine import EngineLimits

NUM_LAYERS, NUM_HEADS, HEAD_SIZE = 2, 2, 4
HIDDEN = NUM_HEADS * HEAD_SIZE

LIMITS = EngineLimits(
    max_batch_size=8,
    max_num_tokens=32,
    max_input_len=64,
    max_seq_len=96,
    vocab_size=61,
    tokens_per_block=4,
    num_blocks=256,
)


class PagedEngine:
    """Implements llmc.runtime.engine.Engine; asserts that a batch is well-formed."""

    def __init__(self, limits: EngineLimits = LIMITS, *, seed: int = 0, **changes: int) -> None:
        self.limits = replace(limits, **changes)
        random = np.random.default_rng(seed)

        def weights(*shape: int) -> npt.NDArray[np.float64]:
            scaled: npt.NDArray[np.float64] = random.standard_normal(shape) / np.sqrt(shape[-1])
            return scaled

        self.embedding = random.standard_normal((self.limits.vocab_size, HIDDEN))
        self.position = random.standard_normal((self.limits.max_seq_len, HIDDEN))
        self.qkv = weights(NUM_LAYERS, 3 * HIDDEN, HIDDEN)
        self.dense = weights(NUM_LAYERS, HIDDEN, HIDDEN)
        self.head = 4 * weights(self.limits.vocab_size, HIDDEN)
        shape = (NUM_LAYERS, self.limits.num_blocks, self.limits.tokens_per_block, 2, HIDDEN)
        self.pool = np.full(shape, np.nan)
        self.batches: list[Batch] = []
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def forward(self, batch: Batch) -> npt.NDArray[np.float32]:
        assert not self.closed
        self._check(batch)
        self.batches.append(batch)
        hidden = np.empty((batch.num_tokens, HIDDEN))
        for s in range(batch.num_sequences):
            table = batch.block_tables[s]
            for row in range(batch.query_start[s], batch.query_start[s + 1]):
                hidden[row] = self._token(batch.token_ids[row], int(batch.positions[row]), table)
        rows = [self.head @ hidden[row] for row in batch.logits_rows]
        return np.array(rows, dtype=np.float32).reshape(len(rows), self.limits.vocab_size)

    def recompute_logits(self, tokens: list[int]) -> npt.NDArray[np.float32]:
        """Return the logits [V] after `tokens`, with plain attention over contiguous arrays."""
        keys_values = np.empty((NUM_LAYERS, len(tokens), 2, HIDDEN))
        hidden = np.empty(HIDDEN)
        for position, token in enumerate(tokens):
            hidden = self._embed(token, position)
            for layer in range(NUM_LAYERS):
                query, key, value = np.split(self.qkv[layer] @ hidden, 3)
                keys_values[layer, position] = key, value
                hidden = self._mix(layer, hidden, query, keys_values[layer, : position + 1])
        return (self.head @ hidden).astype(np.float32)

    def _token(
        self, token: int, position: int, table: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float64]:
        tokens_per_block = self.limits.tokens_per_block
        places = np.arange(position + 1)
        blocks, slots = table[places // tokens_per_block], places % tokens_per_block
        hidden = self._embed(token, position)
        for layer in range(NUM_LAYERS):
            query, key, value = np.split(self.qkv[layer] @ hidden, 3)
            self.pool[layer, blocks[-1], slots[-1]] = key, value
            hidden = self._mix(layer, hidden, query, self.pool[layer, blocks, slots])
        return hidden

    def _embed(self, token: int, position: int) -> npt.NDArray[np.float64]:
        vector: npt.NDArray[np.float64] = self.embedding[token] + self.position[position]
        return vector

    def _mix(
        self,
        layer: int,
        hidden: npt.NDArray[np.float64],
        query: npt.NDArray[np.float64],
        keys_values: npt.NDArray[np.float64],
    ) -> npt.NDArray[np.float64]:
        """Attention of one token over `keys_values` [positions, 2, HIDDEN], and the residual."""
        heads = keys_values.reshape(len(keys_values), 2, NUM_HEADS, HEAD_SIZE)
        scores = np.einsum("hd,phd->hp", query.reshape(NUM_HEADS, HEAD_SIZE), heads[:, 0])
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
        attended = np.einsum("hp,phd->hd", scores, heads[:, 1]).reshape(HIDDEN)
        mixed: npt.NDArray[np.float64] = np.tanh(hidden + self.dense[layer] @ attended)
        return mixed

    def _check(self, batch: Batch) -> None:
        limits = self.limits
        assert 0 < batch.num_tokens <= limits.max_num_tokens
        assert 0 < batch.num_sequences <= limits.max_batch_size
        for name in batch.__dataclass_fields__:
            array = getattr(batch, name)
            assert array.dtype == np.int32 and array.flags.c_contiguous, name
        assert batch.block_tables.shape == (batch.num_sequences, limits.max_blocks_per_sequence)
        assert batch.prompt_lens.shape == batch.context_lens.shape and batch.prompt_lens.min() > 0
        assert batch.query_start[0] == 0 and batch.query_start[-1] == batch.num_tokens
        assert sorted(set(batch.logits_rows)) == list(batch.logits_rows)
        writers: dict[int, int] = {}
        readers: dict[int, set[int]] = {}
        for s in range(batch.num_sequences):
            start, end = batch.query_start[s], batch.query_start[s + 1]
            positions = batch.positions[start:end]
            first = batch.context_lens[s] - (end - start)
            assert end > start and list(positions) == list(range(first, batch.context_lens[s]))
            used = -(-int(batch.context_lens[s]) // limits.tokens_per_block)
            blocks = batch.block_tables[s, :used].tolist()
            assert all(0 <= block < limits.num_blocks for block in blocks)
            for block in blocks:
                readers.setdefault(block, set()).add(s)
            for block in {blocks[p // limits.tokens_per_block] for p in positions}:
                assert block not in writers, f"two sequences write block {block}"
                writers[block] = s
        for block, writer in writers.items():
            assert readers[block] == {writer}, f"block {block} is written while shared"
