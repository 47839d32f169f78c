"""Several ranks as one engine: rank 0 schedules and shares each batch, the others follow it.

Collectives inside a step are the engine's own, and so is the way of the logits from the last
pipeline stage to rank 0; here go the batches.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from llmc.errors import CheckpointError, ServeError
from llmc.mapping import Mapping
from llmc.runtime.batch import Batch, Int32Array
from llmc.runtime.comm import open_communicator
from llmc.runtime.engine import Engine, KvCacheConfig, load_engine, read_engine_config

log = logging.getLogger(__name__)

Float32Array = npt.NDArray[np.float32]

_HEADER_LEN = 4
"""Tokens, sequences, blocks per table, rows of logits of the batch to follow; 0 tokens: end."""


class Link(Protocol):
    """Point to point between ranks, in order (llmc.runtime.comm.MpiCommunicator)."""

    def send(self, values: Float32Array, peer: int) -> None: ...
    def recv(self, values: Float32Array, peer: int) -> None: ...


class LeadEngine:
    """Rank 0's engine with the other ranks behind it; an Engine to the executor."""

    def __init__(self, engine: Engine, link: Link, *, world_size: int) -> None:
        """Wait for every follower; the smallest KV pool of all is everyone's."""
        self._engine, self._link = engine, link
        self._in_step = False
        self._followers = range(1, world_size)
        pools = [engine.limits.num_blocks]
        for peer in self._followers:
            pools.append(int(_recv(link, 1, peer)[0]))
        self.limits = replace(engine.limits, num_blocks=min(pools))

    def forward(self, batch: Batch) -> Float32Array:
        """Run one step on every rank (runtime.engine.Engine.forward)."""
        header, body = _pack(batch)
        for peer in self._followers:
            _send(self._link, header, peer)
            _send(self._link, body, peer)
        self._in_step = True
        logits = self._engine.forward(batch)
        self._in_step = False
        return logits

    def close(self) -> None:
        """End the followers and release this rank's engine.

        After a step that failed here they wait inside it, where no message reaches them: they are
        the launcher's to end.
        """
        if self._in_step:
            log.error("a step failed on rank 0; the other ranks still wait in it: end the job")
        else:
            for peer in self._followers:
                _send(self._link, np.zeros(_HEADER_LEN, np.int32), peer)
        self._engine.close()


def follow(engine: Engine, link: Link) -> None:
    """Step with rank 0 until it ends, then close the engine."""
    _send(link, np.array([engine.limits.num_blocks], np.int32), 0)
    while True:
        header = _recv(link, _HEADER_LEN, 0)
        if header[0] == 0:
            break
        engine.forward(_unpack(header, _recv(link, sum(_lengths(header)), 0)))
    engine.close()


def read_mapping(engine_dir: Path) -> Mapping:
    """Return how the engine is split, as seen by rank 0. Raises: CheckpointError."""
    pretrained = read_engine_config(engine_dir).get("pretrained_config")
    fields = pretrained.get("mapping") if isinstance(pretrained, dict) else None
    sizes = [(fields or {}).get(name, 1) for name in ("tp_size", "pp_size", "cp_size")]
    if not isinstance(fields, dict) or not all(isinstance(size, int) for size in sizes):
        raise CheckpointError(
            f"{engine_dir / 'config.json'}: pretrained_config.mapping is {fields!r}, "
            "expected tp_size and pp_size"
        )
    return Mapping(tp_size=sizes[0], pp_size=sizes[1], cp_size=sizes[2])


def open_engine(engine_dir: Path, kv: KvCacheConfig) -> Engine:
    """Load an engine of any number of ranks; of several, this must be rank 0 of their MPI job.

    Raises: CheckpointError, UnsupportedError (load_engine); ToolchainError, ServeError without MPI.
    """
    mapping = read_mapping(engine_dir)
    if mapping.world_size == 1:
        return load_engine(engine_dir, kv=kv)
    comm = open_communicator(mapping.world_size)
    if comm.rank != 0:
        raise ServeError(f"rank {comm.rank}: only rank 0 serves, the others follow it")
    engine = load_engine(engine_dir, kv=_share(kv, mapping), comm=comm)
    return LeadEngine(engine, comm, world_size=mapping.world_size)


def serve_rank(engine_dir: Path, kv: KvCacheConfig) -> None:
    """Be a rank other than 0 until rank 0 shuts down; an error ends the whole job.

    Raises: ToolchainError, ServeError without MPI.
    """
    mapping = read_mapping(engine_dir)
    comm = open_communicator(mapping.world_size)
    assert comm.rank != 0, "rank 0 schedules"
    try:
        engine = load_engine(engine_dir, rank=comm.rank, kv=_share(kv, mapping), comm=comm)
        follow(engine, comm)
    except Exception:  # the process's boundary: its peers would wait forever
        log.exception("rank %d failed; ending all ranks", comm.rank)
        comm.abort(1)


def _share(kv: KvCacheConfig, mapping: Mapping) -> KvCacheConfig:
    """Return each rank's share of the free memory, which ranks on one host see all of."""
    fraction = kv.free_memory_fraction / mapping.world_size
    log.info("%d ranks: each takes %.2f of the free memory", mapping.world_size, fraction)
    return replace(kv, free_memory_fraction=fraction)


def _pack(batch: Batch) -> tuple[Int32Array, Int32Array]:
    arrays = (
        batch.token_ids,
        batch.positions,
        batch.query_start,
        batch.context_lens,
        batch.block_tables.ravel(),
        batch.logits_rows,
    )
    num_logits = batch.logits_rows.shape[0]
    sizes = [batch.num_tokens, *batch.block_tables.shape, num_logits]
    return np.array(sizes, np.int32), np.concatenate(arrays)


def _lengths(header: Int32Array) -> list[int]:
    tokens, sequences, blocks, logits = (int(size) for size in header)
    return [tokens, tokens, sequences + 1, sequences, sequences * blocks, logits]


def _unpack(header: Int32Array, body: Int32Array) -> Batch:
    cuts = np.cumsum(_lengths(header))[:-1]
    token_ids, positions, query_start, context_lens, tables, logits_rows = np.split(body, cuts)
    return Batch(
        token_ids=token_ids,
        positions=positions,
        query_start=query_start,
        context_lens=context_lens,
        block_tables=tables.reshape(int(header[1]), int(header[2])),
        logits_rows=logits_rows,
    )


def _send(link: Link, values: Int32Array, peer: int) -> None:
    """Send integers through a link for floats: the bits are moved, not the numbers."""
    link.send(values.view(np.float32), peer)


def _recv(link: Link, count: int, peer: int) -> Int32Array:
    values = np.empty(count, np.int32)
    link.recv(values.view(np.float32), peer)
    return values
