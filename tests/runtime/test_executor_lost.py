"""An executor whose engine is lost, or never returns from its step."""

import threading

import numpy as np
import numpy.typing as npt
import pytest

from llmc.errors import ServeError
from llmc.runtime.batch import Batch
from llmc.runtime.engine import EngineLostError, RankConfig
from llmc.runtime.executor import Executor, ExecutorConfig
from llmc.runtime.request import Request, Response
from tests.runtime.paged_engine import PagedEngine

WAIT = 20.0
BEGUN = Request(prompt_ids=(1, 2, 3), max_tokens=50, streaming=True)
WAITING = Request(prompt_ids=(4, 5), max_tokens=5)
CONFIG = ExecutorConfig(ranks=RankConfig(launch_mode="orchestrator", max_restarts=1))


class LosesRank(PagedEngine):
    """Steps until it is told that a rank is lost."""

    def __init__(self) -> None:
        super().__init__(max_batch_size=1)
        self.lost = threading.Event()

    def forward(self, batch: Batch) -> npt.NDArray[np.float32]:
        if self.lost.wait(0.02):
            raise EngineLostError("rank 1 ended")
        return super().forward(batch)


def start(executor: Executor) -> tuple[int, list[int]]:
    """Return a request that has begun and two that wait for its slot."""
    begun = executor.enqueue(BEGUN)
    assert executor.await_responses(begun, WAIT)
    return begun, [executor.enqueue(WAITING) for _ in range(2)]


def last(executor: Executor, request_id: int) -> Response:
    while True:
        response = executor.await_responses(request_id, WAIT)[-1]
        if response.is_final:
            return response


def test_what_had_begun_ends_and_what_waits_is_served_by_the_next_engine() -> None:
    expected = Executor(PagedEngine(), None, ExecutorConfig())
    answer = last(expected, expected.enqueue(WAITING)).token_ids
    expected.shutdown()
    engines = [LosesRank(), LosesRank()]
    with Executor(engines[0], None, CONFIG, reopen=lambda: engines[1]) as executor:
        begun, waiting = start(executor)
        engines[0].lost.set()
        assert last(executor, begun).error == "the engine failed: rank 1 ended"
        assert [last(executor, i).token_ids for i in waiting] == [answer, answer]
        assert engines[0].closed
        begun, waiting = start(executor)
        engines[1].lost.set()
        for request_id in (begun, *waiting):
            error = last(executor, request_id).error
            assert error == "the engine failed: EngineLostError: rank 1 ended"
        with pytest.raises(ServeError, match="request refused: the engine failed"):
            executor.enqueue(WAITING)
    assert engines[1].closed


def test_an_engine_that_cannot_be_had_again_ends_everything() -> None:
    engine = LosesRank()

    def reopen() -> PagedEngine:
        raise EngineLostError("rank 0 did not start in time")

    with Executor(engine, None, CONFIG, reopen=reopen) as executor:
        begun, waiting = start(executor)
        engine.lost.set()
        assert last(executor, begun).error == "the engine failed: rank 1 ended"
        for request_id in waiting:
            assert "rank 0 did not start in time" in (last(executor, request_id).error or "")


def test_clients_of_an_engine_that_never_returns_are_told() -> None:
    """As inside MPI, when a peer is gone."""
    stuck, release = threading.Event(), threading.Event()

    class Stuck(PagedEngine):
        def forward(self, batch: Batch) -> npt.NDArray[np.float32]:
            stuck.set()
            release.wait(WAIT)
            return super().forward(batch)

    executor = Executor(Stuck(max_batch_size=1), None, ExecutorConfig())
    ids = [executor.enqueue(request) for request in (BEGUN, WAITING)]
    assert stuck.wait(WAIT)
    executor.fail("rank 1 ended")
    assert [last(executor, i).error for i in ids] == ["rank 1 ended"] * 2
    with pytest.raises(ServeError, match="request refused: rank 1 ended"):
        executor.enqueue(WAITING)
    executor.fail("again")
    release.set()
    executor.shutdown()
