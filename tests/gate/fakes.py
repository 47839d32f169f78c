"""An engine whose logits are a function of the tokens, a tokenizer that reads numbers."""

from collections.abc import Callable
from typing import cast

import numpy as np
import numpy.typing as npt

from llmc.gate.corpus import GateText
from llmc.runtime.batch import Batch
from llmc.runtime.engine import EngineLimits
from llmc.runtime.tokenizer import Tokenizer

VOCAB = 20

Distort = Callable[[npt.NDArray[np.float32], Batch], npt.NDArray[np.float32]]


class FakeEngine:
    """Logits of a token are those of its id, position and predecessor, which it keeps itself.

    `distort` changes a step's logits. Asserts that the KV cache is used as a single sequence may.
    """

    def __init__(
        self,
        *,
        distort: Distort | None = None,
        max_seq_len: int = 100,
        max_num_tokens: int = 64,
        tokens_per_block: int = 8,
        vocab_size: int = VOCAB,
    ) -> None:
        self.limits = EngineLimits(
            max_batch_size=1,
            max_num_tokens=max_num_tokens,
            max_input_len=max_seq_len - 1,
            max_seq_len=max_seq_len,
            vocab_size=vocab_size,
            tokens_per_block=tokens_per_block,
            num_blocks=-(-max_seq_len // tokens_per_block),
        )
        self.positions: list[int] = []
        self.closed = False
        self._distort = distort
        self._cache: list[int] = []

    def forward(self, batch: Batch) -> npt.NDArray[np.float32]:
        start, stop = int(batch.positions[0]), int(batch.context_lens[0])
        assert batch.num_tokens == stop - start <= self.limits.max_num_tokens
        assert stop <= self.limits.max_seq_len
        assert batch.block_tables.shape[1] * self.limits.tokens_per_block >= stop
        assert batch.block_tables.max() < self.limits.num_blocks
        assert start in (0, len(self._cache))
        self._cache = [*self._cache[:start], *batch.token_ids.tolist()]
        self.positions += batch.positions.tolist()
        rows = [
            logits_of(self._cache[: at + 1], self.limits.vocab_size) for at in range(start, stop)
        ]
        logits = np.stack(rows)
        return logits if self._distort is None else self._distort(logits, batch)

    def close(self) -> None:
        self.closed = True


def logits_of(prefix: list[int], vocab_size: int = VOCAB) -> npt.NDArray[np.float32]:
    """Return what a FakeEngine says after `prefix`."""
    seed = (sum(prefix) * 31 + len(prefix)) * 31 + prefix[-1]
    return np.random.default_rng(seed).normal(size=vocab_size).astype(np.float32)


class _NumberTokenizer:
    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


def number_tokenizer() -> Tokenizer:
    """Return a tokenizer whose text is its ids."""
    return cast(Tokenizer, _NumberTokenizer())


def numbers(name: str, ids: list[int]) -> GateText:
    """Return a text of `ids`."""
    return GateText(name=name, sha256="0" * 64, text=" ".join(map(str, ids)))
