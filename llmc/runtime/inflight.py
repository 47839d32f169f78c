"""One iteration of in-flight batching: schedule, step the engine, sample, end what has ended.

No threads and no queues: the executor calls `step` and passes on the events.
"""

from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np

from llmc.runtime.batch import Batch, Int32Array
from llmc.runtime.engine import Engine
from llmc.runtime.request import FinishReason
from llmc.runtime.sampling import Sampled, sample
from llmc.runtime.scheduler import Scheduled, Scheduler, SchedulerConfig
from llmc.runtime.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What a step did for one sequence; a Response once its text is known.

    `text` is None when it is still to be decoded from `token_ids`, which the receiver of the events
    does, so that it happens while the next step runs.
    """

    sequence: Sequence
    is_first: bool
    token_ids: list[int]
    """generated tokens only"""
    log_probs: list[float] | None
    cum_log_prob: float | None
    num_output: int
    text: str | None
    finish_reason: FinishReason | None = None
    error: str | None = None
    is_lost: bool = False

    @property
    def is_final(self) -> bool:
        return self.finish_reason is not None or self.error is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationStats:
    """The state after an iteration; the counts that say "total" are since the start.

    Source: the names follow the metrics of NVIDIA's tensorrtllm_backend (`nv_trt_llm_*`).
    """

    iteration: int = 0
    active: int = 0
    """requests accepted and not finished: scheduled, running and waiting"""
    max_requests: int = 0
    scheduled: int = 0
    """sequences in the step"""
    waiting: int = 0
    context_requests: int = 0
    generation_requests: int = 0
    context_tokens: int = 0
    paused: int = 0
    """sequences preempted in this iteration"""
    paused_total: int = 0
    max_blocks: int = 0
    used_blocks: int = 0
    free_blocks: int = 0
    """blocks that can be allocated, cached ones included"""
    cached_blocks: int = 0
    """free blocks whose contents can still be reused"""
    reused_blocks_total: int = 0
    tokens_per_block: int = 0


class InflightBatcher:
    """Drives one engine. Not thread-safe; the engine's exceptions pass through `step`."""

    def __init__(self, engine: Engine, config: SchedulerConfig) -> None:
        limits = engine.limits
        self.engine = engine
        self.scheduler = Scheduler(limits, config)
        self.stats = self._describe(0, 0, [], 0)
        self._tables = np.zeros(
            (limits.max_batch_size, limits.max_blocks_per_sequence), dtype=np.int32
        )

    @property
    def sequences(self) -> list[Sequence]:
        """Every sequence not finished."""
        return self.scheduler.running + self.scheduler.waiting

    @property
    def is_idle(self) -> bool:
        return not self.scheduler.running and not self.scheduler.waiting

    def add(self, sequence: Sequence) -> None:
        self.scheduler.add(sequence)

    def cancel(self, sequence: Sequence) -> Event:
        """End a sequence between two steps; its blocks are free at once."""
        return self._end(sequence, finish_reason="cancelled")

    def abandon(self) -> tuple[list[Sequence], list[Sequence]]:
        """Let go of every sequence: those that had begun, and those as fresh as when they came.

        For when the engine is lost and its KV pool with it; this batcher is of no use afterwards.
        """
        found = self.sequences
        begun = [s for s in found if s.num_computed or s.num_output]
        fresh = [s for s in found if not (s.num_computed or s.num_output)]
        for sequence in list(self.scheduler.running):
            self.scheduler.finish(sequence)
        return begun, fresh

    def refresh_stats(self) -> None:
        """Describe the present state; for when sequences came or went without a step."""
        self.stats = self._describe(self.stats.iteration, 0, [], 0)

    def step(self) -> list[Event]:
        """Run one iteration and return what happened, in no particular order."""
        num_preempted = self.scheduler.num_preempted
        step = self.scheduler.schedule()
        assert step, "nothing to schedule: the loop would spin"
        batch, sampled_from = self._build_batch(step)
        logits = self.engine.forward(batch)
        assert logits.shape == (len(sampled_from), self.engine.limits.vocab_size), logits.shape
        contexts = [scheduled.num_tokens for scheduled in step if scheduled.is_context]
        self.scheduler.advance(step)
        events: list[Event] = []
        if sampled_from:
            choices = sample(
                logits, [s.sampler for s in sampled_from], [s.tokens for s in sampled_from]
            )
            for sequence, choice in zip(sampled_from, choices, strict=True):
                event = self._take(sequence, choice)
                if event is not None:
                    events.append(event)
        num_paused = self.scheduler.num_preempted - num_preempted
        self.stats = self._describe(self.stats.iteration + 1, len(step), contexts, num_paused)
        return events

    def _build_batch(self, step: list[Scheduled]) -> tuple[Batch, list[Sequence]]:
        """Return the batch of a step and the sequences its rows of logits belong to."""
        token_ids: list[int] = []
        starts: list[int] = []
        slots: list[int] = []
        logits_rows: list[int] = []
        sampled_from: list[Sequence] = []
        for scheduled in step:
            sequence = scheduled.sequence
            start = sequence.num_computed
            token_ids += sequence.tokens[start : start + scheduled.num_tokens]
            starts.append(start)
            slots.append(self._update_table(sequence))
            if scheduled.wants_logits:
                logits_rows.append(len(token_ids) - 1)
                sampled_from.append(sequence)
        counts = [scheduled.num_tokens for scheduled in step]
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        positions = chain.from_iterable(map(range, starts, ends))
        batch = Batch(
            token_ids=np.array(token_ids, dtype=np.int32),
            positions=np.fromiter(positions, dtype=np.int32, count=len(token_ids)),
            query_start=np.array([0, *accumulate(counts)], dtype=np.int32),
            context_lens=np.array(ends, dtype=np.int32),
            block_tables=self._tables[slots],
            logits_rows=np.array(logits_rows, dtype=np.int32),
            prompt_lens=np.array([s.sequence.num_prompt for s in step], dtype=np.int32),
        )
        return batch, sampled_from

    def _update_table(self, sequence: Sequence) -> int:
        """Write the blocks a sequence got since its last step into its row; return the row."""
        assert sequence.slot is not None
        known, count = sequence.num_tabled, len(sequence.blocks)
        if known < count:
            row: Int32Array = self._tables[sequence.slot]
            row[known:count] = sequence.blocks[known:]
            sequence.num_tabled = count
        return sequence.slot

    def _take(self, sequence: Sequence, choice: Sampled | None) -> Event | None:
        """Give a sequence its next token; return what to tell the client now, if anything."""
        if choice is None:
            return self._end(
                sequence, error="the model's output has no finite value to choose a token from"
            )
        if choice.token in sequence.request.end_ids:
            return self._end(sequence, finish_reason="end_id")
        sequence.tokens.append(choice.token)
        sequence.sampler.accept(choice.token)
        if choice.log_prob is not None:
            sequence.log_probs.append(choice.log_prob)
            sequence.cum_log_prob += choice.log_prob
        if sequence.stream.matches:
            text, stopped = sequence.stream.push([choice.token])
            sequence.text += text
            if stopped:
                return self._end(sequence, finish_reason="stop", stopped=True)
        if sequence.num_output == sequence.request.max_tokens:
            return self._end(sequence, finish_reason="length")
        return self._report(sequence) if sequence.request.streaming else None

    def _end(
        self,
        sequence: Sequence,
        *,
        finish_reason: FinishReason | None = None,
        error: str | None = None,
        stopped: bool = False,
    ) -> Event:
        """Free a sequence's blocks and report the rest of its output."""
        self.scheduler.finish(sequence)
        if sequence.stream.matches and not stopped:
            text, stopped = sequence.stream.finish()
            sequence.text += text
            # Held-back bytes may complete a stop string only now that nothing follows them.
            if stopped and finish_reason is not None and finish_reason != "cancelled":
                finish_reason = "stop"
        return self._report(sequence, finish_reason=finish_reason, error=error)

    def _report(
        self,
        sequence: Sequence,
        *,
        finish_reason: FinishReason | None = None,
        error: str | None = None,
    ) -> Event:
        told = sequence.num_reported
        token_ids = sequence.tokens[sequence.num_prompt + told :]
        sequence.num_reported += len(token_ids)
        log_probs = None
        if sequence.request.return_log_probs:
            log_probs = sequence.log_probs[told:]
        text = None
        if sequence.stream.matches:
            text, sequence.text = sequence.text, ""
        return Event(
            sequence=sequence,
            is_first=told == 0,
            token_ids=token_ids,
            log_probs=log_probs,
            cum_log_prob=sequence.cum_log_prob if log_probs is not None else None,
            num_output=sequence.num_output,
            text=text,
            finish_reason=finish_reason,
            error=error,
        )

    def _describe(
        self, iteration: int, num_scheduled: int, contexts: list[int], num_paused: int
    ) -> IterationStats:
        scheduler = self.scheduler
        blocks = scheduler.blocks
        return IterationStats(
            iteration=iteration,
            active=len(scheduler.running) + len(scheduler.waiting),
            max_requests=scheduler.limits.max_batch_size,
            scheduled=num_scheduled,
            waiting=len(scheduler.waiting),
            context_requests=len(contexts),
            generation_requests=num_scheduled - len(contexts),
            context_tokens=sum(contexts),
            paused=num_paused,
            paused_total=scheduler.num_preempted,
            max_blocks=blocks.num_blocks,
            used_blocks=blocks.num_used,
            free_blocks=blocks.num_available,
            cached_blocks=blocks.num_cached,
            reused_blocks_total=scheduler.num_reused_blocks,
            tokens_per_block=scheduler.limits.tokens_per_block,
        )
