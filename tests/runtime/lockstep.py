"""Ranks of one engine in one process: a thread each, which meet where they communicate."""

from queue import Queue
from threading import Barrier

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
_TIMEOUT_S = 60.0


class ThreadRanks:
    """What `size` ranks exchange their values over; `at(rank)` is the end of one."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sent: dict[int, Floats] = {}
        self.barriers: dict[tuple[int, ...], Barrier] = {}
        self.queues = {(a, b): Queue[Floats]() for a in range(size) for b in range(size)}

    def at(self, rank: int) -> "ThreadRank":
        return ThreadRank(self, rank)


class ThreadRank:
    """One rank's communicator (runtime.engines.cpu.Communicator)."""

    def __init__(self, link: ThreadRanks, rank: int) -> None:
        self._link, self._rank = link, rank

    def allreduce(self, values: Floats, group: tuple[int, ...]) -> None:
        values[:] = np.sum(self._exchange(values, group), axis=0)

    def allgather(self, values: Floats, group: tuple[int, ...]) -> Floats:
        return np.stack(self._exchange(values, group))

    def send(self, values: Floats, peer: int) -> None:
        self._link.queues[self._rank, peer].put(values.copy())

    def recv(self, values: Floats, peer: int) -> None:
        values[:] = self._link.queues[peer, self._rank].get(timeout=_TIMEOUT_S)

    def _exchange(self, values: Floats, group: tuple[int, ...]) -> list[Floats]:
        barrier = self._link.barriers.setdefault(group, Barrier(len(group), timeout=_TIMEOUT_S))
        self._link.sent[self._rank] = values.copy()
        barrier.wait()
        parts = [self._link.sent[rank] for rank in group]
        barrier.wait()
        return parts
