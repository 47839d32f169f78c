"""What stands between an engine directory and its plan on a GPU, as far as none is needed."""

import json
import queue
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from llmc.errors import ToolchainError, UnsupportedError
from llmc.runtime.engine import KvCacheConfig, load_engine
from llmc.runtime.engines.tensorrt_device import PlanTensor
from llmc.runtime.engines.tensorrt_loading import choose_plan, plan_limits
from llmc.runtime.engines.tensorrt_nccl import UNIQUE_ID_BYTES, share_bytes
from tests.runtime.stand_in import HostDevice
from tests.runtime.test_tensorrt_slots import cache_tensors

PLANS = [
    {"rank": rank, "capabilities": capabilities, "file": f"rank{rank}.sm{capabilities[0]}.engine"}
    for rank in range(2)
    for capabilities in ([80, 86], [89])
]
CONFIG = {
    "build_config": {
        "max_batch_size": 8,
        "max_num_tokens": 64,
        "max_input_len": 32,
        "max_seq_len": 32,
    },
    "pretrained_config": {"vocab_size": 61},
}


@dataclass
class Tensors:
    """Of a plan, what its limits depend on."""

    tensors: tuple[PlanTensor, ...]


def limits(free_bytes: int, **kv: int | float) -> int:
    plan = Tensors(cache_tensors())
    found = plan_limits(CONFIG, KvCacheConfig(**kv), HostDevice(free_bytes), plan)  # type: ignore[arg-type]
    assert found.tokens_per_block == found.max_seq_len == 32
    assert found.max_batch_size == found.num_blocks
    return found.num_blocks


def test_the_plan_of_a_rank_and_gpu() -> None:
    assert choose_plan(PLANS, 1, 86) == "rank1.sm80.engine"
    assert choose_plan(PLANS, 0, 89) == "rank0.sm89.engine"
    with pytest.raises(UnsupportedError, match=r"capability 90: .* plans for \[80, 86, 89\]"):
        choose_plan(PLANS, 0, 90)


def test_slots_are_what_profile_memory_and_max_tokens_allow() -> None:
    slot = (2 + 4) * 32 * 8 * 2
    assert limits(100 * slot) == 8
    assert limits(5 * slot, free_memory_fraction=0.7) == 3
    assert limits(100 * slot, max_tokens=70) == 2
    with pytest.raises(UnsupportedError, match="no slot of 32 tokens"):
        limits(slot - 1, free_memory_fraction=1.0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without a GPU")
@pytest.mark.parametrize("target", ["tensorrt-rtx", "tensorrt"])
def test_without_a_gpu_it_says_so(tmp_path: Path, target: str) -> None:
    config = CONFIG | {"llmc": {"target": target, "plans": PLANS}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ToolchainError, match="no CUDA GPU on this machine"):
        load_engine(tmp_path, kv=KvCacheConfig())


class Wire:
    """A link of one of several threads (tensorrt_nccl.Link)."""

    def __init__(self, rank: int, queues: list["queue.Queue[npt.NDArray[np.float32]]"]) -> None:
        self.rank, self.size, self._queues = rank, len(queues), queues

    def send(self, values: npt.NDArray[np.float32], peer: int) -> None:
        self._queues[peer].put(values)

    def recv(self, values: npt.NDArray[np.float32], peer: int) -> None:
        values[:] = self._queues[self.rank].get(timeout=20)


def test_every_rank_has_rank_0s_id_to_the_bit() -> None:
    """Any bytes, those of signalling NaNs too."""
    wanted = bytes(range(100, 100 + UNIQUE_ID_BYTES))[:60] + b"\x01\x00\xa0\x7f" * 17
    queues: list[queue.Queue[npt.NDArray[np.float32]]] = [queue.Queue() for _ in range(3)]
    ids = [bytearray(wanted), bytearray(UNIQUE_ID_BYTES), bytearray(UNIQUE_ID_BYTES)]
    threads = [
        threading.Thread(target=share_bytes, args=(Wire(rank, queues), memoryview(ids[rank])))
        for rank in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert ids == [bytearray(wanted)] * 3
