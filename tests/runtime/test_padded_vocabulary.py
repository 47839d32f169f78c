"""A vocabulary that tensor parallel ranks do not divide: its padding is never a token."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llmc.runtime.batch import Batch
from llmc.runtime.engine import KvCacheConfig
from llmc.runtime.engines import cpu
from llmc.runtime.executor import Executor, ExecutorConfig
from llmc.runtime.request import Request, SamplingParams
from tests.plugins.tiny_llama import TinyLlama
from tests.runtime.cpu_engines import LIMITS, build_engine
from tests.runtime.lockstep import ThreadRanks

VOCAB, TP = 97, 2


class Together:
    """Engines of ranks that are threads, as the one engine they are."""

    def __init__(self, engines: list[Any]) -> None:
        self.engines, self.limits = engines, engines[0].limits
        self.pool = ThreadPoolExecutor(len(engines))
        self.largest = -np.inf

    def forward(self, batch: Batch) -> Any:
        logits = list(self.pool.map(lambda engine: engine.forward(batch).copy(), self.engines))[0]
        self.largest = max(self.largest, logits.max(initial=-np.inf))
        return logits

    def close(self) -> None:
        for engine in self.engines:
            engine.close()
        self.pool.shutdown()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Together]:
    """A model that finds every token of its own worse than padding, whose logit is 0."""
    tiny = TinyLlama.make(vocab_size=VOCAB, max_position_embeddings=LIMITS.max_seq_len)
    with torch.no_grad():
        # Channel 0 is large in every token, and all that the output looks at.
        tiny.model.model.embed_tokens.weight[:, 0] = 50
        tiny.model.lm_head.weight[:, 1:] *= 0.01
        tiny.model.lm_head.weight[:, 0] = -1 - torch.rand(VOCAB) / 10
    directory = build_engine(tiny, tiny.config(tp=TP), tmp_path)
    ranks, kv = ThreadRanks(TP), KvCacheConfig(max_tokens=2 * LIMITS.max_seq_len)
    load = [
        cpu.load(directory, rank=rank, kv=kv, threads=1, comm=ranks.at(rank)) for rank in range(TP)
    ]
    yield Together(load)


@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(), SamplingParams(temperature=50.0, top_k=0, seed=1), SamplingParams(top_k=99)],
    ids=["greedy", "the whole vocabulary", "more than the vocabulary"],
)
def test_padding_is_never_sampled(engine: Together, sampling: SamplingParams) -> None:
    request = Request(prompt_ids=(3, VOCAB - 1, 5), max_tokens=200, sampling=sampling)
    with Executor(engine, None, ExecutorConfig()) as executor:
        (response,) = executor.await_responses(executor.enqueue(request), 60)
    assert response.error is None and len(response.token_ids) == 200
    assert max(response.token_ids) < VOCAB
    assert engine.largest < 0, "padding would have been the best token of every step"
