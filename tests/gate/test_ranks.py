"""Engines of several ranks measured in one process."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmc.errors import CheckpointError
from llmc.gate.ranks import Exchange, RankedEngine, ThreadCommunicator
from llmc.runtime.batch import Batch
from tests.builders.tiny_hf import write_model
from tests.gate import built
from tests.gate.fakes import FakeEngine


@pytest.mark.parametrize("mapping", ["{tp: 2}", "{pp: 2}", "{tp: 2, pp: 2}"])
def test_split_engine_passes_its_gate(tmp_path: Path, mapping: str) -> None:
    """Against the whole engine: sums are taken in another order, and no more than that."""
    model = write_model(tmp_path / "model")
    whole = built.build(built.recipe(model), tmp_path / "whole")
    recipe = built.recipe(model, f"mapping={mapping}", f"gate.reference={whole}")
    built.build(recipe, tmp_path / "out")
    gate = built.gate(recipe, tmp_path / "out").gate
    assert gate.verdict == "passed"
    for text in gate.measurement.texts:
        assert text.divergence is not None
        assert text.divergence.max_kl < 1e-9 and text.divergence.top1_agreement == 1


class Rank(FakeEngine):
    """Adds what its peer has to each row of logits, or fails, or waits for a peer that does."""

    def __init__(self, comm: ThreadCommunicator, failure: Exception | None = None) -> None:
        super().__init__()
        self._comm, self._failure = comm, failure

    def forward(self, batch: Batch) -> Any:
        if self._failure is not None:
            raise self._failure
        logits = super().forward(batch)
        self._comm.allreduce(logits, (0, 1))
        return logits


def batch() -> Batch:
    three = np.arange(3, dtype=np.int32)
    return Batch(
        token_ids=three,
        positions=three,
        query_start=np.asarray([0, 3], np.int32),
        context_lens=np.asarray([3], np.int32),
        block_tables=np.zeros((1, 1), np.int32),
        logits_rows=three,
        prompt_lens=np.asarray([3], np.int32),
    )


def test_ranks_sum_the_same_everywhere_and_close() -> None:
    exchange = Exchange(2)
    ranks = [Rank(ThreadCommunicator(exchange, rank)) for rank in range(2)]
    engine = RankedEngine(ranks, exchange)
    assert np.array_equal(engine.forward(batch()), 2 * FakeEngine().forward(batch()))
    engine.close()
    assert all(rank.closed for rank in ranks)


@pytest.mark.parametrize("broken", [0, 1])
@pytest.mark.timeout(60)
def test_a_failing_rank_does_not_leave_others_waiting(broken: int) -> None:
    exchange = Exchange(2)
    ranks = [
        Rank(
            ThreadCommunicator(exchange, rank),
            CheckpointError("torn page") if rank == broken else None,
        )
        for rank in range(2)
    ]
    engine = RankedEngine(ranks, exchange)
    with pytest.raises(CheckpointError, match="torn page"):
        engine.forward(batch())
    engine.close()
