"""Several ranks as one engine: one process schedules and shares each batch, the ranks step it.

Collectives inside a step are the engine's own, and so is the way of the logits from the last
pipeline stage to rank 0; here go the batches. Every rank has checked before it loads a weight that
all belong to one engine, and is watched (watch.py) from then on.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from llmc.errors import LlmcError, ServeError
from llmc.runtime.batch import Batch, Int32Array
from llmc.runtime.comm import MpiCommunicator, open_communicator
from llmc.runtime.engine import Engine, KvCacheConfig, RankConfig, load_engine
from llmc.runtime.left_behind import end_with_server
from llmc.runtime.microbatch import cut
from llmc.runtime.rank_files import describe_rank, read_mapping, require_one_engine
from llmc.runtime.watch import Report, Watch

log = logging.getLogger(__name__)

Float32Array = npt.NDArray[np.float32]

_HEADER_LEN = 4
"""Tokens, sequences, blocks per table, rows of logits of the batch; 0 tokens: end."""
_FIRST_LEN = 2048
"""Integers of the first broadcast of a step: a batch of that size needs no second one."""
START_SECONDS = 120.0
"""How long a rank may take until it can be watched: to load Python and MPI, from a slow disk."""
LOST_EXIT_CODE = ServeError.exit_code


class Link(Protocol):
    """What batches go through (llmc.runtime.comm.MpiCommunicator)."""

    def broadcast(self, values: Int32Array, *, patient: bool = False) -> None: ...
    def share(self, value: str) -> list[str]: ...
    def abort(self, exit_code: int) -> None: ...


class PartedEngine(Engine, Protocol):
    """One rank of several that may be given its step in parts; not every target's may."""

    def forward_parts(self, parts: Sequence[Batch]) -> Float32Array: ...


def step(engine: Engine, batch: Batch, *, pp_size: int) -> Float32Array:
    """Run this rank's share of a step, in parts where the engine and its stages gain by it."""
    if pp_size == 1 or not hasattr(engine, "forward_parts"):
        return engine.forward(batch)
    parted: PartedEngine = engine  # type: ignore[assignment]
    return parted.forward_parts(cut(batch, pp_size))


class LeadEngine:
    """Rank 0's engine with the other ranks behind it; an Engine to the executor."""

    def __init__(
        self, engine: Engine, link: Link, *, pp_size: int = 1, watch: Watch | None = None
    ) -> None:
        """Wait for every follower; the smallest KV pool of all is everyone's."""
        self._engine, self.comm, self._pp_size = engine, link, pp_size
        self.watch = watch
        self._in_step = False
        pools = map(int, link.share(str(engine.limits.num_blocks)))
        self.limits = replace(engine.limits, num_blocks=min(pools))

    def forward(self, batch: Batch) -> Float32Array:
        """Run one step on every rank (runtime.engine.Engine.forward)."""
        self._in_step = True
        share_batch(self.comm, pack(batch))
        logits = step(self._engine, batch, pp_size=self._pp_size)
        self._in_step = False
        return logits

    def close(self) -> None:
        """End the followers and release this rank's engine.

        After a step that failed here they wait inside it, where no message reaches them: then the
        watch, or the launcher, ends them.
        """
        if self._in_step:
            log.error("a step failed on rank 0; the other ranks still wait in it")
        else:
            if self.watch is not None:
                self.watch.close()
            share_batch(self.comm, np.zeros(_HEADER_LEN, np.int32))
        self._engine.close()


def follow(engine: Engine, link: Link, *, pp_size: int = 1) -> None:
    """Step with rank 0 until it ends, then close the engine."""
    link.share(str(engine.limits.num_blocks))
    while (batch := receive_batch(link)) is not None:
        step(engine, batch, pp_size=pp_size)
    engine.close()


def lead(engine_dir: Path, kv: KvCacheConfig, ranks: RankConfig) -> LeadEngine:
    """Load rank 0 of an MPI job that runs, watch the other ranks, and wait for them.

    Should one be lost before this returns, the whole job ends: the other ranks wait inside MPI.
    Raises: CheckpointError, UnsupportedError (load_engine); ToolchainError, ServeError without MPI.
    """
    mapping = read_mapping(engine_dir)
    comm = open_communicator(mapping.world_size)
    if comm.rank != 0:
        raise ServeError(f"rank {comm.rank}: only rank 0 serves, the others follow it")
    watch = Watch(
        range(1, comm.size),
        timeout_seconds=ranks.timeout_seconds,
        start_seconds=START_SECONDS,
        host=None if comm.num_local == comm.size else socket.gethostname(),
    )
    comm.share(watch.address)
    loading = threading.Event()
    loading.set()
    watch.subscribe(lambda reason: end_job(comm, reason) if loading.is_set() else None)
    engine = LeadEngine(load_rank(engine_dir, kv, comm), comm, pp_size=mapping.pp_size, watch=watch)
    loading.clear()
    return engine


def join_as_follower(
    engine_dir: Path, kv: KvCacheConfig, ranks: RankConfig
) -> threading.Thread | None:
    """Be what this process is of a leader's MPI job: None on rank 0 and where there is no job.

    Any other rank is loaded, and follows rank 0 in the thread that is returned. The process ends
    when rank 0 is lost, or the step fails here. Raises: CheckpointError, UnsupportedError when this
    rank cannot be loaded; rank 0 knows by then. ToolchainError, ServeError without MPI.
    """
    world_size = read_mapping(engine_dir).world_size
    if ranks.launch_mode != "leader" or world_size == 1:
        return None
    comm = open_communicator(world_size)
    end_with_server(f"rank {comm.rank}")
    if comm.rank == 0:
        return None
    (address, *_) = comm.share("")
    report = Report(
        address,
        rank=comm.rank,
        timeout_seconds=ranks.timeout_seconds,
        # Rank 0 can tell nobody any more; its server and those of the other ranks are to end, too.
        on_loss=lambda reason: end_job(comm, f"rank {comm.rank}: {reason}"),
    )
    pp_size = read_mapping(engine_dir).pp_size
    try:
        engine = load_rank(engine_dir, kv, comm)
    except LlmcError as error:
        report.fail(error.message)
        raise

    def run() -> None:
        try:
            follow(engine, comm, pp_size=pp_size)
        except Exception as error:  # the thread's boundary: its peers would wait forever
            log.exception("rank %d failed", comm.rank)
            report.fail(f"{type(error).__name__}: {error}")
            end_process(comm.rank, repr(error))

    thread = threading.Thread(target=run, name="llmc-rank", daemon=True)
    thread.start()
    return thread


def end_job(comm: Link, reason: str) -> None:
    """End every rank of the job by MPI's means, and this process in any case."""
    timer = threading.Timer(2.0, os._exit, (LOST_EXIT_CODE,))
    timer.daemon = True
    timer.start()
    say_end(reason)
    # A launcher that is told to abort drops what it has not passed on yet.
    time.sleep(0.3)
    comm.abort(LOST_EXIT_CODE)


def end_process(rank: int, reason: str) -> None:
    """End this process at once: its main thread may wait inside MPI, where nothing reaches it."""
    say(f"rank {rank} ends: {reason}")
    os._exit(LOST_EXIT_CODE)


def say_end(reason: str) -> None:
    """Say why the ranks end; what was said before is not shown twice."""
    say(f"{reason}; all ranks end")


def say(reason: str) -> None:
    """Write an error where `llmc serve` looks for it, at once: this process may end any moment."""
    os.write(2, f"\nerror: {reason}\n".encode())


def load_rank(engine_dir: Path, kv: KvCacheConfig, comm: MpiCommunicator) -> Engine:
    """Check this rank's file and that all ranks have the same build, then load it."""
    try:
        require_one_engine(comm.share(describe_rank(engine_dir, comm.rank)))
    except LlmcError as error:
        say(error.message)
        raise
    fraction = kv.free_memory_fraction / comm.num_local
    log.info("%d ranks here: each takes %.2f of the free memory", comm.num_local, fraction)
    return load_engine(
        engine_dir,
        rank=comm.rank,
        kv=replace(kv, free_memory_fraction=fraction),
        comm=comm,
        threads=comm.num_threads,
    )


def share_batch(link: Link, packed: Int32Array) -> None:
    """Broadcast a packed batch from rank 0: at once when it is small, else in two parts."""
    first = np.zeros(_FIRST_LEN, np.int32)
    first[: packed.size] = packed[:_FIRST_LEN]
    link.broadcast(first)
    if packed.size > _FIRST_LEN:
        link.broadcast(packed[_FIRST_LEN:])


def receive_batch(link: Link) -> Batch | None:
    """Wait for rank 0's next batch; None is the end."""
    first = np.empty(_FIRST_LEN, np.int32)
    link.broadcast(first, patient=True)
    if first[0] == 0:
        return None
    size = packed_size(first)
    packed = np.empty(size, np.int32)
    packed[:_FIRST_LEN] = first[:size]
    if size > _FIRST_LEN:
        link.broadcast(packed[_FIRST_LEN:])
    return unpack(packed)


def pack(batch: Batch) -> Int32Array:
    """Return a batch as one array, its sizes first."""
    sizes = [batch.num_tokens, *batch.block_tables.shape, batch.logits_rows.shape[0]]
    arrays = (
        batch.token_ids,
        batch.positions,
        batch.query_start,
        batch.context_lens,
        batch.block_tables.ravel(),
        batch.logits_rows,
        batch.prompt_lens,
    )
    return np.concatenate((np.array(sizes, np.int32), *arrays))


def packed_size(header: Int32Array) -> int:
    """Return how many integers a packed batch has, whose beginning is `header`."""
    return _HEADER_LEN + sum(_lengths(header))


def unpack(packed: Int32Array) -> Batch:
    """Return the batch that was packed."""
    header, body = packed[:_HEADER_LEN], packed[_HEADER_LEN:]
    cuts = np.cumsum(_lengths(header))[:-1]
    token_ids, positions, query_start, context_lens, tables, logits_rows, prompt_lens = np.split(
        body, cuts
    )
    return Batch(
        token_ids=token_ids,
        positions=positions,
        query_start=query_start,
        context_lens=context_lens,
        block_tables=tables.reshape(int(header[1]), int(header[2])),
        logits_rows=logits_rows,
        prompt_lens=prompt_lens,
    )


def _lengths(header: Int32Array) -> list[int]:
    tokens, sequences, blocks, logits = (int(size) for size in header[:_HEADER_LEN])
    return [tokens, tokens, sequences + 1, sequences, sequences * blocks, logits, sequences]
