"""All ranks of an engine in this process, a thread each: a measurement needs no MPI job.

Slower than a rank to a machine, and every rank's weights must fit into this one.
"""

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from llmc.errors import BuildError
from llmc.gate.metrics import Float32Array
from llmc.runtime.batch import Batch
from llmc.runtime.engine import Engine, KvCacheConfig, load_engine


class Exchange:
    """A queue from each rank to each other; None on it says that a rank has failed."""

    def __init__(self, world_size: int) -> None:
        self.queues: dict[tuple[int, int], SimpleQueue[Float32Array | None]] = {
            pair: SimpleQueue() for pair in itertools.permutations(range(world_size), 2)
        }

    def abort(self) -> None:
        """Wake every rank that waits for another."""
        for queue in self.queues.values():
            queue.put(None)


class ThreadCommunicator:
    """What one rank needs of its peers (runtime.engines.cpu.Communicator), within a process."""

    def __init__(self, exchange: Exchange, rank: int) -> None:
        self._exchange, self._rank = exchange, rank

    def allreduce(self, values: Float32Array, group: tuple[int, ...]) -> None:
        """Replace `values` by its sum over the group, in the order of its ranks on each of them."""
        parts = self.allgather(values, group)
        values[:] = parts[0]
        for part in parts[1:]:
            values += part

    def allgather(self, values: Float32Array, group: tuple[int, ...]) -> Float32Array:
        """Return every rank's `values`, stacked on a new first axis in the order of the group."""
        peers = [rank for rank in group if rank != self._rank]
        for peer in peers:
            self.send(values, peer)
        parts = {peer: self._receive(peer) for peer in peers} | {self._rank: values}
        return np.stack([parts[rank] for rank in group])

    def send(self, values: Float32Array, peer: int) -> None:
        """Hand a copy of `values` to `peer`."""
        self._exchange.queues[self._rank, peer].put(values.copy())

    def recv(self, values: Float32Array, peer: int) -> None:
        """Fill `values` with what `peer` sent."""
        values[:] = self._receive(peer)

    def _receive(self, peer: int) -> Float32Array:
        values = self._exchange.queues[peer, self._rank].get()
        if values is None:
            raise BuildError(f"rank {self._rank}: another rank failed")
        return values


class RankedEngine:
    """The ranks of one engine as one (runtime.engine.Engine); limits and logits are rank 0's."""

    def __init__(self, engines: Sequence[Engine], exchange: Exchange) -> None:
        self._engines, self._exchange = engines, exchange
        self._pool = ThreadPoolExecutor(len(engines))
        self.limits = engines[0].limits

    def forward(self, batch: Batch) -> Float32Array:
        """Run one step on every rank (runtime.engine.Engine.forward).

        Raises: what the first rank to fail raised; the engine is of no use afterwards.
        """
        steps = [self._pool.submit(self._step, engine, batch) for engine in self._engines]
        errors = [error for step in steps if (error := step.exception()) is not None]
        if errors:
            # A rank that was woken by abort says nothing of the cause.
            raise next((e for e in errors if not isinstance(e, BuildError)), errors[0])
        return steps[0].result()

    def close(self) -> None:
        """Release every rank."""
        self._pool.shutdown()
        for engine in self._engines:
            engine.close()

    def _step(self, engine: Engine, batch: Batch) -> Float32Array:
        try:
            return engine.forward(batch)
        except BaseException:
            self._exchange.abort()
            raise


def load_ranks(engine_dir: Path, *, world_size: int, kv: KvCacheConfig) -> RankedEngine:
    """Load every rank of an engine. Raises: as load_engine does; nothing stays loaded then."""
    exchange = Exchange(world_size)
    engines: list[Engine] = []
    try:
        for rank in range(world_size):
            comm = ThreadCommunicator(exchange, rank)
            engines.append(load_engine(engine_dir, rank=rank, kv=kv, comm=comm))
    except BaseException:
        for engine in engines:
            engine.close()
        raise
    return RankedEngine(engines, exchange)
