"""A TensorRT plan as the executor's Engine: ragged batches of paged sequences onto slots.

To the scheduler a slot is one KV block of max_seq_len tokens, so a sequence has exactly one. A step
runs each prompt's chunk by itself, bound to its slot's row of the caches, and then all sequences
with one token together, bound to the first rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmc.errors import CheckpointError
from llmc.runtime.batch import Batch, Int32Array
from llmc.runtime.engine import EngineLimits
from llmc.runtime.engines.tensorrt_device import (
    Device,
    Phase,
    Plan,
    PlanContext,
    PlanTensor,
)
from llmc.runtime.engines.tensorrt_slots import SlotCaches

Float32Array = npt.NDArray[np.float32]

STEP_INPUTS = (
    *("token_ids", "positions", "write_indices", "kv_lens", "logits_rows"),
    "prompt_lens",
)
LOGITS = "logits"
_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One run of the plan: sequences of a batch with equally many new tokens."""

    phase: Phase
    sequences: tuple[int, ...]
    first_row: int


class SlotEngine:
    """One rank (runtime.engine.Engine). Used by one thread at a time."""

    def __init__(
        self, device: Device, plan: Plan, limits: EngineLimits, weights: Mapping[str, int]
    ) -> None:
        """Allocate `limits.num_blocks` slots and the inputs and outputs of the largest steps.

        `weights` are the addresses of inputs that stay as they are, bound here for all steps.
        Raises: CheckpointError for a plan with other inputs than a step and `weights` have.
        """
        assert limits.tokens_per_block == limits.max_seq_len, limits
        assert limits.max_batch_size <= limits.num_blocks, limits
        self.limits = limits
        self._device, self._plan = device, plan
        self._tensors = {tensor.name: tensor for tensor in plan.tensors}
        self._slots = SlotCaches(device, plan.tensors, limits.num_blocks)
        _check_tensors(self._tensors, self._slots, weights)
        self._contexts: dict[Phase, PlanContext] = {
            phase: plan.context(phase) for phase in ("context", "generation")
        }
        for context in self._contexts.values():
            for name, address in weights.items():
                context.set_tensor_address(name, address)
        self._max_rows = plan.max_shape("logits_rows", "context")[1]
        sizes = {
            name: max(int(np.prod(plan.max_shape(name, phase))) for phase in self._contexts)
            for name in STEP_INPUTS
            if name in self._tensors
        }
        self._addresses = {
            name: device.allocate(size * np.dtype(np.int32).itemsize)
            for name, size in sizes.items()
        }
        self._columns = self._tensors[LOGITS].shape[2]
        self._addresses[LOGITS] = device.allocate(
            sizes["logits_rows"] * self._columns * _FLOAT32_BYTES
        )

    def forward(self, batch: Batch) -> Float32Array:
        """Run one step (runtime.engine.Engine.forward)."""
        counts = np.diff(batch.query_start)
        blocks = [int(block) for block in batch.block_tables[:, 0]]
        singles = [place for place, count in enumerate(counts) if count == 1]
        self._slots.gather([blocks[place] for place in singles], ended=self._ended(batch, blocks))
        logits = np.empty((batch.logits_rows.shape[0], self.limits.vocab_size), np.float32)
        for place, count in enumerate(counts):
            if count > 1:
                row = self._slots.row(blocks[place])
                self._run(_Part(phase="context", sequences=(place,), first_row=row), batch, logits)
        if singles:
            ordered = sorted(singles, key=lambda place: self._slots.row(blocks[place]))
            part = _Part(phase="generation", sequences=tuple(ordered), first_row=0)
            self._run(part, batch, logits)
        return logits

    def close(self) -> None:
        """Release plan and memory; the engine is unusable afterwards."""
        self._plan.close()
        self._device.close()

    def _ended(self, batch: Batch, blocks: list[int]) -> set[int]:
        """Return blocks that hold nothing worth keeping.

        A step with tokens to spare has every sequence that runs (Scheduler.schedule), so those it
        lacks have ended. A full step may lack some.
        """
        if batch.num_tokens >= self.limits.max_num_tokens:
            return set()
        return set(range(self.limits.num_blocks)) - set(blocks)

    def _run(self, part: _Part, batch: Batch, logits: Float32Array) -> None:
        """Run the plan for a part, and put the logits it wants into their rows."""
        spans = [(batch.query_start[s], batch.query_start[s + 1]) for s in part.sequences]
        wanted = [_rows_within(batch.logits_rows, *span) for span in spans]
        local = [
            batch.logits_rows[rows] - span[0] for rows, span in zip(wanted, spans, strict=True)
        ]
        # At least one row each, as TensorRT has no empty tensors here; more than one round when a
        # profile has fewer than are wanted, as when a text is measured.
        for start in range(0, max(1, *(len(rows) for rows in local)), self._max_rows):
            chunk = [rows[start : start + self._max_rows] for rows in local]
            found = self._execute(part, batch, spans, chunk)
            for rows, places, values in zip(wanted, chunk, found, strict=True):
                targets = np.arange(rows.start, rows.stop)[start : start + len(places)]
                logits[targets] = values[: len(places), : self.limits.vocab_size]

    def _execute(
        self,
        part: _Part,
        batch: Batch,
        spans: list[tuple[int, int]],
        logits_rows: list[Int32Array],
    ) -> Float32Array:
        """Bind and run one profile; returns logits [sequences, rows, columns], padded by row 0."""
        context = self._contexts[part.phase]
        num_rows = max(1, *(len(rows) for rows in logits_rows))
        padded = [np.pad(rows, (0, num_rows - len(rows))) for rows in logits_rows]
        values = {
            "token_ids": [batch.token_ids[start:stop] for start, stop in spans],
            "positions": [batch.positions[start:stop] for start, stop in spans],
            "write_indices": [batch.positions[start] for start, _ in spans],
            "kv_lens": [batch.context_lens[s] for s in part.sequences],
            "logits_rows": padded,
            "prompt_lens": [batch.prompt_lens[s] for s in part.sequences],
        }
        for name in STEP_INPUTS:
            if name in self._tensors:
                array = np.ascontiguousarray(np.stack(values[name]), np.int32)
                self._device.upload(self._addresses[name], array)
                context.set_input_shape(name, array.shape)
                context.set_tensor_address(name, self._addresses[name])
        for cache in self._slots.caches:
            address = cache.address + part.first_row * cache.row_bytes
            context.set_input_shape(cache.input, (len(part.sequences), *cache.row_shape))
            context.set_tensor_address(cache.input, address)
            context.set_tensor_address(cache.output, address)
        context.set_tensor_address(LOGITS, self._addresses[LOGITS])
        context.execute()
        logits = np.empty((len(part.sequences), num_rows, self._columns), np.float32)
        self._device.download(logits, self._addresses[LOGITS])
        return logits


def _rows_within(logits_rows: Int32Array, start: int, stop: int) -> slice:
    """Return which of the ascending rows lie in [start, stop)."""
    first, last = np.searchsorted(logits_rows, (start, stop))
    return slice(int(first), int(last))


def _check_tensors(
    tensors: dict[str, PlanTensor], slots: SlotCaches, weights: Mapping[str, int]
) -> None:
    if absent := weights.keys() - tensors.keys():
        raise CheckpointError(f"the plan does not take the weights {', '.join(sorted(absent))}")
    known = {*STEP_INPUTS, LOGITS, *weights}
    for cache in slots.caches:
        known |= {cache.input, cache.output}
    if unknown := tensors.keys() - known:
        raise CheckpointError(
            f"the plan has tensors {', '.join(sorted(unknown))} that this llmc does not bind",
            hint="build the engine again with this version of llmc",
        )
    if LOGITS not in tensors or tensors[LOGITS].itemsize != _FLOAT32_BYTES:
        raise CheckpointError(f"the plan has no output {LOGITS!r} of float32")
