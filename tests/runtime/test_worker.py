import json
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from llmc.errors import CheckpointError
from llmc.runtime.batch import Batch
from llmc.runtime.executor import Executor, ExecutorConfig
from llmc.runtime.request import Request
from llmc.runtime.worker import LeadEngine, follow, read_mapping
from tests.plugins.tiny_llama import TinyLlama
from tests.runtime.cpu_engines import build_engine
from tests.runtime.paged_engine import PagedEngine
from tests.runtime.test_comm import mpirun

ROOT = Path(__file__).parents[2]
WAIT = 20.0


class QueueLink:
    """A link between threads that copies, as MPI does."""

    def __init__(self, rank: int, queues: dict[tuple[int, int], "queue.Queue[Any]"]) -> None:
        self.rank, self.queues = rank, queues

    def send(self, values: npt.NDArray[np.float32], peer: int) -> None:
        self.queues[self.rank, peer].put(values.copy())

    def recv(self, values: npt.NDArray[np.float32], peer: int) -> None:
        # As integers: a float copy may change the bits of what looks like a NaN.
        received = self.queues[peer, self.rank].get(timeout=WAIT)
        values.view(np.int32)[...] = received.view(np.int32)


class WithoutLogits(PagedEngine):
    """A rank that does not have the logits."""

    def forward(self, batch: Batch) -> npt.NDArray[np.float32]:
        return super().forward(batch)[:0]


def test_every_rank_steps_the_same_batches() -> None:
    queues: dict[tuple[int, int], queue.Queue[Any]] = {
        (a, b): queue.Queue() for a in range(3) for b in range(3)
    }
    engines = [
        PagedEngine(num_blocks=30),
        WithoutLogits(num_blocks=20),
        WithoutLogits(num_blocks=25),
    ]
    followers = [
        threading.Thread(target=follow, args=(engines[rank], QueueLink(rank, queues)))
        for rank in (1, 2)
    ]
    for thread in followers:
        thread.start()
    lead = LeadEngine(engines[0], QueueLink(0, queues), world_size=3)
    assert lead.limits.num_blocks == 20
    requests = [Request(prompt_ids=(i, 7, i) * 11, max_tokens=9) for i in range(5)]

    def answers(executor: Executor) -> dict[int, tuple[int, ...]]:
        with executor:
            ids = [executor.enqueue(request) for request in requests]
            return {i: executor.await_responses(i, WAIT)[0].token_ids for i in ids}

    expected = answers(Executor(PagedEngine(num_blocks=20), None, ExecutorConfig()))
    assert answers(Executor(lead, None, ExecutorConfig())) == expected
    for thread in followers:
        thread.join(WAIT)
        assert not thread.is_alive()
    assert all(engine.closed for engine in engines)
    assert len(engines[0].batches) > 9
    for engine in engines[1:]:
        for mine, theirs in zip(engines[0].batches, engine.batches, strict=True):
            for name in Batch.__dataclass_fields__:
                np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))


def test_followers_inside_a_failed_step_are_not_told_to_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(PagedEngine):
        def forward(self, batch: Batch) -> npt.NDArray[np.float32]:
            raise RuntimeError("out of memory")

    queues: dict[tuple[int, int], queue.Queue[Any]] = {(0, 1): queue.Queue(), (1, 0): queue.Queue()}
    QueueLink(1, queues).send(np.array([9], np.int32).view(np.float32), 0)
    engine = Failing()
    lead = LeadEngine(engine, QueueLink(0, queues), world_size=2)
    with Executor(lead, None, ExecutorConfig()) as executor:
        request_id = executor.enqueue(Request(prompt_ids=(1, 2), max_tokens=2))
        (response,) = executor.await_responses(request_id, WAIT)
    assert response.error == "the engine failed: RuntimeError: out of memory"
    assert engine.closed and "end the job" in caplog.text
    assert queues[0, 1].qsize() == 2, "the batch, and nothing after it"


@pytest.mark.parametrize("mapping", [None, [], {"tp_size": "2"}])
def test_a_config_without_mapping_is_named(tmp_path: Path, mapping: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"pretrained_config": {"mapping": mapping}}))
    with pytest.raises(CheckpointError, match="config.json: pretrained_config.mapping is"):
        read_mapping(tmp_path)


PROGRAM = """
import sys
from pathlib import Path
from mpi4py import MPI
from llmc.runtime.engine import KvCacheConfig
from llmc.runtime.executor import Executor, ExecutorConfig
from llmc.runtime.request import Request
from llmc.runtime.worker import open_engine, serve_rank

engine_dir, kv = Path(sys.argv[1]), KvCacheConfig(max_tokens=2048)
if MPI.COMM_WORLD.Get_rank():
    serve_rank(engine_dir, kv)
else:
    with Executor(open_engine(engine_dir, kv), None, ExecutorConfig()) as executor:
        ids = [
            executor.enqueue(Request(prompt_ids=(3 + i, 5, 8) * 60, max_tokens=12))
            for i in range(3)  # 180 tokens: more than a step, so that one step has no logits
        ]
        print([executor.await_responses(i)[0].token_ids for i in ids])
"""


@pytest.mark.mpi
def test_split_engines_answer_like_the_whole_one(tmp_path: Path) -> None:
    tiny = TinyLlama.make()
    outputs = []
    for tp, pp in ((1, 1), (2, 1), (1, 2)):
        engine_dir = build_engine(tiny, tiny.config(tp=tp, pp=pp), tmp_path / f"tp{tp}pp{pp}")
        command = [mpirun(), "-n", str(tp * pp), sys.executable, "-c", PROGRAM, str(engine_dir)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0].count("(") == 3, "an answer to each request"
    assert outputs[1] == outputs[0] and outputs[2] == outputs[0]
