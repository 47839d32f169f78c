"""A CPU program bound to memory, run a step at a time by the thread team.

Python prepares a step's integers, the team runs whole segments of the program in one call each, and
between segments Python does what communicates. Whose tensors these are, and where what is sent
goes, is the caller's business: an engine's ranks are served alike, and a calibration's layers.
"""

import ctypes
from collections.abc import Callable, Mapping
from ctypes import c_double
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from llmc.plugins import native
from llmc.plugins.cpu_memory import Arena, StepBuffers
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
    Program,
)

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]

Communicate = Callable[[CpuOp, tuple[Float32Array, ...], tuple[Float32Array, ...]], None]
"""Does a communicating op: its inputs' and outputs' rows of this step, the latter to be filled."""


class StepBatch(Protocol):
    """The integers of a step (runtime.batch.Batch has them, and says what they are)."""

    @property
    def token_ids(self) -> Int32Array: ...
    @property
    def positions(self) -> Int32Array: ...
    @property
    def query_start(self) -> Int32Array: ...
    @property
    def context_lens(self) -> Int32Array: ...
    @property
    def block_tables(self) -> Int32Array: ...
    @property
    def logits_rows(self) -> Int32Array: ...
    @property
    def prompt_lens(self) -> Int32Array: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_sequences(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a program's ops point at: the address of each tensor, and a KV pool of all layers."""

    tensors: Mapping[str, int]
    kv: Arena
    layer_bytes: int
    """Bytes of one layer's part of `kv`."""


class BoundProgram:
    """A program with step buffers for at most `max_tokens` tokens and `max_logits` logits rows."""

    def __init__(
        self,
        program: Program,
        memory: Memory,
        team: native.Team,
        *,
        max_tokens: int,
        max_logits: int,
    ) -> None:
        self._program, self._memory, self._team = program, memory, team
        self.buffers = StepBuffers(program, max_tokens=max_tokens, max_logits=max_logits)
        self._segments = _segments(program.ops, self._native_op)

    def run(
        self,
        batch: StepBatch,
        communicate: Communicate,
        seconds: dict[str, float] | None = None,
    ) -> None:
        """Run one step; `seconds` gets the time of each kind of kernel, barriers included."""
        rows = {"T": batch.num_tokens, "L": int(batch.logits_rows.shape[0])}
        assert rows["L"] <= self.buffers.max_logits, (rows, self.buffers.max_logits)
        integers = step_integers(batch)
        step = native_batch(batch, integers)
        for kinds, segment in self._segments:
            if isinstance(segment, CpuOp):
                communicate(
                    segment,
                    tuple(self._array(name, rows) for name in segment.inputs),
                    tuple(self._array(name, rows) for name in segment.outputs),
                )
                continue
            times = (c_double * len(segment))() if seconds is not None else None
            step.op_seconds = times
            self._team.run(segment, step, self.buffers.addresses)
            for kind, spent in zip(kinds, times or (), strict=False):
                assert seconds is not None
                seconds[kind] = seconds.get(kind, 0.0) + spent

    def _array(self, name: str, rows: Mapping[str, int]) -> Float32Array:
        return self.buffers.array(name, rows[self._program.values[name].rows])

    def _native_op(self, op: CpuOp) -> native.NativeOp:
        index = self.buffers.index
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
                found.tensor[place] = self._memory.kv.address + op.layer * self._memory.layer_bytes
            elif name is not None:
                found.tensor[place] = self._memory.tensors[name]
        return found


_Segment = tuple[tuple[str, ...], "CpuOp | ctypes.Array[native.NativeOp]"]


def _segments(
    ops: tuple[CpuOp, ...], native_op: Callable[[CpuOp], native.NativeOp]
) -> list[_Segment]:
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


def step_integers(batch: StepBatch) -> tuple[Int32Array, ...]:
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


def native_batch(batch: StepBatch, integers: tuple[Int32Array, ...]) -> native.NativeBatch:
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
        prompt_lens=batch.prompt_lens.ctypes.data,
        token_sequence=token_sequence.ctypes.data,
        num_tiles=tile_sequence.shape[0],
        tile_start=tile_start.ctypes.data,
        tile_sequence=tile_sequence.ctypes.data,
    )
