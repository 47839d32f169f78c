"""The CPU engine: a program bound to memory and run by the native thread team.

Python prepares a step's integers, the team runs whole segments of the program in one call each, and
between segments, on more than one rank, Python calls the communicator.
"""

import ctypes
import logging
import time
from ctypes import c_double
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from llmc.errors import CheckpointError, UnsupportedError
from llmc.plugins import native
from llmc.plugins.cpu_file import EngineFile
from llmc.plugins.cpu_program import (
    COLLECTIVES,
    FLAG_FLOAT_ROWS,
    FLAG_GATED,
    FLAG_INTEGER_ROWS,
    FLAG_LOGITS_ROWS,
    FLAG_ROW_SCALES,
    KINDS,
    KV_CACHE,
    TYPES,
    CpuOp,
)
from llmc.runtime.batch import Batch
from llmc.runtime.engine import EngineLimits, KvCacheConfig
from llmc.runtime.engines.cpu_memory import Arena, StepBuffers, Weights, plan_kv_blocks

log = logging.getLogger(__name__)

Float32Array = npt.NDArray[np.float32]


class Communicator(Protocol):
    """What a rank of several needs of its peers. A group lists ranks, ascending, with this one."""

    def allreduce(self, values: Float32Array, group: tuple[int, ...]) -> None:
        """Replace `values` by its sum over the group, the same bits on every rank."""
        ...

    def allgather(self, values: Float32Array, group: tuple[int, ...]) -> Float32Array:
        """Return every rank's `values`, stacked on a new first axis in the order of the group."""
        ...

    def send(self, values: Float32Array, peer: int) -> None: ...

    def recv(self, values: Float32Array, peer: int) -> None:
        """Fill `values` with what `peer` sent."""
        ...


def load(
    engine_dir: Path,
    *,
    rank: int = 0,
    kv: KvCacheConfig,
    threads: int | None = None,
    instruction_set: str | None = None,
    comm: Communicator | None = None,
) -> "CpuEngine":
    """Load rank<rank>.engine: weights into huge pages, threads started, KV pool reserved.

    `threads` defaults to the cores this process may use, `instruction_set` to the best of this CPU
    (or what LLMC_CPU_ISA says).
    Raises: CheckpointError for a broken file, UnsupportedError for an instruction set this CPU
    lacks, a KV pool that does not fit, or an engine of several ranks without `comm`.
    """
    started = time.perf_counter()
    file = EngineFile.open(engine_dir / f"rank{rank}.engine")
    if file.rank != rank:
        raise CheckpointError(f"{file.path}: holds rank {file.rank}, expected rank {rank}")
    if comm is None and any(op.kind in COLLECTIVES for op in file.program.ops):
        raise UnsupportedError(f"{file.path}: one rank of several, started alone")
    team = native.Team(threads=threads, instruction_set=instruction_set)
    try:
        engine = CpuEngine(file, team=team, kv=kv, comm=comm)
    except BaseException:
        team.close()
        raise
    log.info(
        "%s: %s, %d threads, %d KV blocks of %d tokens, loaded in %.2f s",
        file.path,
        team.instruction_set,
        team.threads,
        engine.limits.num_blocks,
        engine.limits.tokens_per_block,
        time.perf_counter() - started,
    )
    return engine


class CpuEngine:
    """One rank (runtime.engine.Engine). Used by one thread at a time."""

    def __init__(
        self,
        file: EngineFile,
        *,
        team: native.Team,
        kv: KvCacheConfig,
        comm: Communicator | None,
    ) -> None:
        program = file.program
        self._program, self._team, self._comm = program, team, comm
        self._weights = Weights(file, threads=team.threads)
        num_blocks = plan_kv_blocks(
            program.kv,
            program.limits,
            max_tokens=kv.max_tokens,
            free_fraction=kv.free_memory_fraction,
        )
        self.limits = EngineLimits(
            **program.limits,
            tokens_per_block=program.kv.tokens_per_block,
            num_blocks=num_blocks,
        )
        self._layer_bytes = num_blocks * program.kv.block_bytes
        self._kv = Arena(program.kv.num_layers * self._layer_bytes)
        self._bind(self.limits.max_batch_size)

    def _bind(self, max_logits: int) -> None:
        """Make step buffers for so many rows of logits, and the ops that point into them."""
        self._buffers = StepBuffers(
            self._program, max_tokens=self.limits.max_num_tokens, max_logits=max_logits
        )
        self._segments = _segments(self._program.ops, self._native_op)

    def _native_op(self, op: CpuOp) -> native.NativeOp:
        index = self._buffers.index
        rows = self._program.values[(*op.outputs, *op.inputs)[0]].rows
        found = native.NativeOp(
            kind=KINDS[op.kind],
            type=TYPES[op.type],
            input=index[op.inputs[0]] if op.inputs else -1,
            input2=index[op.inputs[1]] if len(op.inputs) > 1 else -1,
            output=index[op.outputs[0]] if op.outputs else -1,
            flags=(FLAG_LOGITS_ROWS if rows == "L" else 0)
            | (FLAG_GATED if op.gated else 0)
            | (FLAG_INTEGER_ROWS if op.integer_rows else 0)
            | (FLAG_ROW_SCALES if op.row_scales else 0)
            | (FLAG_FLOAT_ROWS if op.float_rows else 0),
        )
        found.dim[: len(op.dims)] = op.dims
        found.param[: len(op.params)] = op.params
        for place, name in enumerate(op.tensors):
            if name == KV_CACHE:
                assert op.layer is not None
                found.tensor[place] = self._kv.address + op.layer * self._layer_bytes
            elif name is not None:
                found.tensor[place] = self._weights.addresses[name]
        return found

    @property
    def instruction_set(self) -> str:
        """Which kernels run: a name of plugins.native.instruction_sets."""
        return self._team.instruction_set

    def forward(self, batch: Batch) -> Float32Array:
        """Run one step (runtime.engine.Engine.forward).

        On a rank without the logits the result has no rows.
        """
        return self._forward(batch, None)

    def profile(self, batch: Batch) -> dict[str, float]:
        """Run one step and return the seconds spent in each kind of kernel, barriers included."""
        seconds: dict[str, float] = {}
        self._forward(batch, seconds)
        return seconds

    def _forward(self, batch: Batch, seconds: dict[str, float] | None) -> Float32Array:
        num_logits = int(batch.logits_rows.shape[0])
        self._check(batch)
        if num_logits > self._buffers.max_logits:
            self._bind(num_logits)
        integers = step_integers(batch)
        step = native_batch(batch, integers)
        for kinds, segment in self._segments:
            if isinstance(segment, CpuOp):
                self._communicate(segment, {"T": batch.num_tokens, "L": num_logits})
                continue
            times = (c_double * len(segment))() if seconds is not None else None
            step.op_seconds = times
            self._team.run(segment, step, self._buffers.addresses)
            for kind, spent in zip(kinds, times or (), strict=False):
                assert seconds is not None
                seconds[kind] = seconds.get(kind, 0.0) + spent
        if self._program.output is None:
            return np.empty((0, self.limits.vocab_size), np.float32)
        return self._buffers.array(self._program.output, num_logits)

    def _check(self, batch: Batch) -> None:
        limits = self.limits
        assert batch.num_tokens <= limits.max_num_tokens, (batch.num_tokens, limits)
        for array in (batch.token_ids, batch.positions, batch.query_start, batch.context_lens,
                      batch.block_tables, batch.logits_rows):  # fmt: skip
            assert array.dtype == np.int32 and array.flags.c_contiguous, array
        if batch.num_tokens:
            assert 0 <= batch.positions.min() and batch.positions.max() < limits.max_seq_len
            assert 0 <= batch.block_tables.min() and batch.block_tables.max() < limits.num_blocks
        if batch.logits_rows.size:
            assert 0 <= batch.logits_rows.min() and batch.logits_rows.max() < batch.num_tokens

    def _communicate(self, op: CpuOp, rows: dict[str, int]) -> None:
        assert self._comm is not None
        values = self._program.values

        def array(name: str) -> Float32Array:
            return self._buffers.array(name, rows[values[name].rows])

        if op.kind == "send":
            assert op.peer is not None
            self._comm.send(array(op.inputs[0]), op.peer)
            return
        out = array(op.outputs[0])
        if op.kind == "recv":
            assert op.peer is not None
            self._comm.recv(out, op.peer)
        elif op.kind == "allreduce":
            out[:] = array(op.inputs[0])
            self._comm.allreduce(out, op.group)
        else:
            parts = self._comm.allgather(array(op.inputs[0]), op.group)
            # Columns past the end are the padding of a vocabulary that did not divide.
            out[:] = np.concatenate(list(parts), axis=1)[:, : out.shape[1]]

    def close(self) -> None:
        """End the threads; the engine is unusable afterwards."""
        self._team.close()


_Segment = tuple[tuple[str, ...], "CpuOp | ctypes.Array[native.NativeOp]"]


def _segments(ops: tuple[CpuOp, ...], native_op: Any) -> list[_Segment]:
    """Cut a program at its collectives: (kinds, array of native ops) or (kind, collective)."""
    segments: list[_Segment] = []
    pending: list[CpuOp] = []

    def flush() -> None:
        if pending:
            array = (native.NativeOp * len(pending))(*(native_op(op) for op in pending))
            segments.append((tuple(op.kind for op in pending), array))
            pending.clear()

    for op in ops:
        if op.kind in COLLECTIVES:
            flush()
            segments.append(((op.kind,), op))
        else:
            pending.append(op)
    flush()
    return segments


def step_integers(batch: Batch) -> tuple[npt.NDArray[np.int32], ...]:
    """Return token_sequence [T], tile_start [tiles + 1] and tile_sequence [tiles].

    A tile is up to QUERY_TILE consecutive tokens of one sequence.
    """
    lengths = np.diff(batch.query_start)
    sequences = np.arange(lengths.shape[0], dtype=np.int32)
    token_sequence = np.repeat(sequences, lengths)
    tiles = -(-lengths // native.QUERY_TILE)
    tile_sequence = np.repeat(sequences, tiles)
    within = np.arange(tile_sequence.shape[0]) - np.repeat(np.cumsum(tiles) - tiles, tiles)
    starts = batch.query_start[:-1][tile_sequence] + within * native.QUERY_TILE
    tile_start = np.append(starts, batch.num_tokens).astype(np.int32)
    return token_sequence, tile_start, tile_sequence


def native_batch(batch: Batch, integers: tuple[npt.NDArray[np.int32], ...]) -> native.NativeBatch:
    """Point a C batch at the arrays; they must outlive it."""
    token_sequence, tile_start, tile_sequence = integers
    return native.NativeBatch(
        num_tokens=batch.num_tokens,
        num_sequences=batch.num_sequences,
        num_logits=batch.logits_rows.shape[0],
        max_blocks=batch.block_tables.shape[1],
        token_ids=batch.token_ids.ctypes.data,
        positions=batch.positions.ctypes.data,
        query_start=batch.query_start.ctypes.data,
        context_lens=batch.context_lens.ctypes.data,
        block_tables=batch.block_tables.ctypes.data,
        logits_rows=batch.logits_rows.ctypes.data,
        token_sequence=token_sequence.ctypes.data,
        num_tiles=tile_sequence.shape[0],
        tile_start=tile_start.ctypes.data,
        tile_sequence=tile_sequence.ctypes.data,
    )
