"""The CPU engine: one rank's program, its weights and its KV pool; plugins.cpu_step runs it.

What a rank of several sends and receives goes through a communicator.
"""

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from llmc.errors import CheckpointError, UnsupportedError
from llmc.plugins import native
from llmc.plugins.cpu_file import EngineFile
from llmc.plugins.cpu_memory import Arena
from llmc.plugins.cpu_program import COLLECTIVES, CpuOp
from llmc.plugins.cpu_step import BoundProgram, Memory
from llmc.runtime.batch import Batch
from llmc.runtime.engine import EngineLimits, KvCacheConfig
from llmc.runtime.engines.cpu_memory import Weights, plan_kv_blocks

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


def check(engine_dir: Path, rank: int) -> str | None:
    """Return the build of rank<rank>.engine. Raises: CheckpointError for a broken file."""
    file = EngineFile.open(engine_dir / f"rank{rank}.engine")
    if file.rank != rank:
        raise CheckpointError(f"{file.path}: holds rank {file.rank}, expected rank {rank}")
    return file.build


def lacking(engine_dir: Path) -> str | None:
    """Return nothing: llmc itself runs on a CPU these kernels know."""
    return None


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
        layer_bytes = num_blocks * program.kv.block_bytes
        self._memory = Memory(
            tensors=self._weights.addresses,
            kv=Arena(program.kv.num_layers * layer_bytes),
            layer_bytes=layer_bytes,
        )
        self._bound = self._bind(self.limits.max_batch_size)

    def _bind(self, max_logits: int) -> BoundProgram:
        """Bind the program to step buffers for so many rows of logits."""
        return BoundProgram(
            self._program,
            self._memory,
            self._team,
            max_tokens=self.limits.max_num_tokens,
            max_logits=max_logits,
        )

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
        if num_logits > self._bound.buffers.max_logits:
            self._bound = self._bind(num_logits)
        self._bound.run(batch, self._communicate, seconds)
        if self._program.output is None:
            return np.empty((0, self.limits.vocab_size), np.float32)
        return self._bound.buffers.array(self._program.output, num_logits)

    def forward_parts(self, parts: Sequence[Batch]) -> Float32Array:
        """Run a step that was cut into parts; return their logits in a row.

        The first stage of a pipeline passes every part on before it waits for the logits of any:
        so the stages after it work on one part while it works on the next.
        """
        last = self._program.ops[-1]
        if len(parts) == 1 or last.kind != "recv" or self._program.output is None:
            found = [self.forward(part) for part in parts]
            assert len(found) == 1 or not any(map(len, found)), "only the first stage has logits"
            return found[0]
        assert self._comm is not None and last.peer is not None

        def all_but_last(op: CpuOp, *arrays: tuple[Float32Array, ...]) -> None:
            if op is not last:
                self._communicate(op, *arrays)

        counts = [int(part.logits_rows.shape[0]) for part in parts]
        if sum(counts) > self._bound.buffers.max_logits:
            self._bound = self._bind(sum(counts))
        for part in parts:
            self._check(part)
            self._bound.run(part, all_but_last)
        logits = self._bound.buffers.array(self._program.output, sum(counts))
        for rows in np.split(logits, np.cumsum(counts)[:-1]):
            self._comm.recv(rows, last.peer)
        return logits

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

    def _communicate(
        self, op: CpuOp, inputs: tuple[Float32Array, ...], outputs: tuple[Float32Array, ...]
    ) -> None:
        assert self._comm is not None
        if op.kind == "send":
            assert op.peer is not None
            self._comm.send(inputs[0], op.peer)
        elif op.kind == "recv":
            assert op.peer is not None
            self._comm.recv(outputs[0], op.peer)
        elif op.kind == "allreduce":
            outputs[0][:] = inputs[0]
            self._comm.allreduce(outputs[0], op.group)
        else:
            parts = self._comm.allgather(inputs[0], op.group)
            # Columns past the end are the padding of a vocabulary that did not divide.
            outputs[0][:] = np.concatenate(list(parts), axis=1)[:, : outputs[0].shape[1]]

    def close(self) -> None:
        """End the threads; the engine is unusable afterwards."""
        self._team.close()
