import json
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from llmc.errors import CheckpointError
from llmc.runtime import microbatch
from llmc.runtime.batch import Batch
from llmc.runtime.executor import Executor, ExecutorConfig
from llmc.runtime.rank_files import read_mapping
from llmc.runtime.request import Request
from llmc.runtime.worker import LeadEngine, follow, pack, receive_batch, share_batch
from tests.plugins.tiny_llama import TinyLlama
from tests.runtime.cpu_engines import build_engine
from tests.runtime.paged_engine import PagedEngine
from tests.runtime.test_comm import mpirun

ROOT = Path(__file__).parents[2]
WAIT = 20.0


class QueueLink:
    """A link between threads that copies, as MPI does."""

    def __init__(self, rank: int, queues: "list[queue.Queue[Any]]") -> None:
        self.rank, self.queues = rank, queues

    def broadcast(self, values: npt.NDArray[np.int32], *, patient: bool = False) -> None:
        if self.rank:
            values[...] = self.queues[self.rank].get(timeout=WAIT)
        else:
            for other in self.queues[1:]:
                other.put(values.copy())

    def share(self, value: str) -> list[str]:
        """Gather on rank 0, the only one that looks."""
        self.queues[0].put(value)
        return [self.queues[0].get(timeout=WAIT) for _ in self.queues] if not self.rank else []

    def abort(self, exit_code: int) -> None:
        raise AssertionError(exit_code)


class Rank(PagedEngine):
    """One rank, which keeps what it was given."""

    def __init__(self, *, num_blocks: int = 64) -> None:
        super().__init__(num_blocks=num_blocks)
        self.parts: list[int] = []

    def forward_parts(self, parts: Sequence[Batch]) -> npt.NDArray[np.float32]:
        self.parts.append(len(parts))
        return np.concatenate([self.forward(part).copy() for part in parts])


class WithoutLogits(Rank):
    """A rank that does not have the logits."""

    def forward(self, batch: Batch) -> npt.NDArray[np.float32]:
        return super().forward(batch)[:0]


def test_every_rank_steps_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(microbatch, "MIN_PART_TOKENS", 1)
    queues: list[queue.Queue[Any]] = [queue.Queue() for _ in range(3)]
    engines = [
        Rank(num_blocks=30),
        WithoutLogits(num_blocks=20),
        WithoutLogits(num_blocks=25),
    ]
    followers = [
        threading.Thread(
            target=follow, args=(engines[rank], QueueLink(rank, queues)), kwargs={"pp_size": 2}
        )
        for rank in (1, 2)
    ]
    for thread in followers:
        thread.start()
    lead = LeadEngine(engines[0], QueueLink(0, queues), pp_size=2)
    assert lead.limits.num_blocks == 20
    requests = [Request(prompt_ids=(i, 7, i) * 3, max_tokens=9) for i in range(5)]

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
    assert engines[0].parts == engines[1].parts and set(engines[0].parts) == {1, 2}
    for engine in engines[1:]:
        for mine, theirs in zip(engines[0].batches, engine.batches, strict=True):
            for name in Batch.__dataclass_fields__:
                np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))


def test_followers_inside_a_failed_step_are_not_told_to_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(Rank):
        def forward(self, batch: Batch) -> npt.NDArray[np.float32]:
            raise RuntimeError("out of memory")

    queues: list[queue.Queue[Any]] = [queue.Queue(), queue.Queue()]
    QueueLink(1, queues).share("9")
    engine = Failing()
    lead = LeadEngine(engine, QueueLink(0, queues))
    with Executor(lead, None, ExecutorConfig()) as executor:
        request_id = executor.enqueue(Request(prompt_ids=(1, 2), max_tokens=2))
        (response,) = executor.await_responses(request_id, WAIT)
    assert response.error == "the engine failed: RuntimeError: out of memory"
    assert engine.closed and "still wait in it" in caplog.text
    assert queues[1].qsize() == 1, "the batch, and nothing after it"


@pytest.mark.parametrize("mapping", [None, [], {"tp_size": "2"}])
def test_a_config_without_mapping_is_named(tmp_path: Path, mapping: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"pretrained_config": {"mapping": mapping}}))
    with pytest.raises(CheckpointError, match="config.json: pretrained_config.mapping is"):
        read_mapping(tmp_path)


@pytest.mark.parametrize("num_tokens", [1, 700, 5000])
def test_a_batch_comes_through_whatever_its_size(num_tokens: int) -> None:
    tokens = np.arange(num_tokens, dtype=np.int32)
    batch = Batch(
        token_ids=tokens + 3,
        positions=tokens,
        query_start=np.array([0, num_tokens], np.int32),
        context_lens=np.array([num_tokens], np.int32),
        block_tables=np.arange(num_tokens, dtype=np.int32)[None],
        logits_rows=np.array([num_tokens - 1], np.int32),
        prompt_lens=np.array([num_tokens + 5], np.int32),
    )
    queues: list[queue.Queue[Any]] = [queue.Queue(), queue.Queue()]
    share_batch(QueueLink(0, queues), pack(batch))
    found = receive_batch(QueueLink(1, queues))
    assert found is not None and queues[1].empty()
    for name in Batch.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(found, name), getattr(batch, name))


PROGRAM = """
import sys
from pathlib import Path
from llmc.runtime.engine import KvCacheConfig, RankConfig, load_engine
from llmc.runtime.executor import Executor, ExecutorConfig
from llmc.runtime.rank_files import read_mapping
from llmc.runtime.request import Request
from llmc.runtime.worker import join_as_follower, lead

engine_dir, kv, ranks = Path(sys.argv[1]), KvCacheConfig(max_tokens=2048), RankConfig()
following = join_as_follower(engine_dir, kv, ranks)
if following is not None:
    following.join()
else:
    whole = read_mapping(engine_dir).world_size == 1
    engine = load_engine(engine_dir, kv=kv) if whole else lead(engine_dir, kv, ranks)
    with Executor(engine, None, ExecutorConfig()) as executor:
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
    for tp, pp in ((1, 1), (2, 1), (1, 2), (2, 2)):
        engine_dir = build_engine(tiny, tiny.config(tp=tp, pp=pp), tmp_path / f"tp{tp}pp{pp}")
        command = [mpirun(), "-n", str(tp * pp), sys.executable, "-c", PROGRAM, str(engine_dir)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0].count("(") == 3, "an answer to each request"
    assert len(set(outputs)) == 1, outputs
