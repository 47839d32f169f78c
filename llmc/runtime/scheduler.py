"""Who runs in the next step, with how many tokens and in which blocks: integers only."""

from bisect import insort
from dataclasses import dataclass
from typing import Literal

from llmc.runtime.engine import EngineLimits
from llmc.runtime.kv_blocks import BlockManager
from llmc.runtime.sequence import Sequence

BatchSchedulerPolicy = Literal["guaranteed_no_evict", "max_utilization"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """`policy` says what happens when blocks run out: "guaranteed_no_evict" admits only what is
    sure to finish, "max_utilization" admits what fits now and preempts later.

    Without `enable_chunked_context` a prompt is computed in one step. A preempted sequence longer
    than a step is recomputed in chunks in any case: it could not come back otherwise.
    """

    policy: BatchSchedulerPolicy = "guaranteed_no_evict"
    enable_chunked_context: bool = True
    enable_kv_cache_reuse: bool = True


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The next `num_tokens` tokens of `sequence`, in the coming step."""

    sequence: Sequence
    num_tokens: int

    @property
    def wants_logits(self) -> bool:
        """Whether nothing is left to compute afterwards; valid until the step is recorded."""
        return self.sequence.num_left == self.num_tokens

    @property
    def is_context(self) -> bool:
        """Whether these tokens are (part of) a prompt; valid until the step is recorded."""
        return self.num_tokens > 1 or self.sequence.num_computed < self.sequence.num_prompt


class Scheduler:
    """Owns the waiting and the running sequences and their blocks. Not thread-safe.

    A step of the caller: `schedule()`, run the engine, `advance()`, sample, `finish()` what ended.
    """

    def __init__(self, limits: EngineLimits, config: SchedulerConfig) -> None:
        self.limits = limits
        self.config = config
        self.blocks = BlockManager(limits.num_blocks)
        self.running: list[Sequence] = []
        """in order of service"""
        self.waiting: list[Sequence] = []
        """in reverse order of service: the next to admit is the last"""
        self.num_preempted = 0
        """sequences preempted, in all steps"""
        self.num_reused_blocks = 0
        """blocks found computed instead of computed again, in all steps"""
        self._free_slots = list(range(limits.max_batch_size - 1, -1, -1))

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence, or one preempted."""
        sequence.salt = self.limits.prompt_salt(sequence.num_prompt)
        insort(self.waiting, sequence, key=lambda s: (-s.key[0], -s.key[1]))

    def finish(self, sequence: Sequence) -> None:
        """Forget a sequence, waiting or running, and free its blocks."""
        if sequence.slot is None:
            self.waiting.remove(sequence)
        else:
            self._stop(sequence)

    def schedule(self) -> list[Scheduled]:
        """Choose the next step: contexts first, then generation, as TensorRT-LLM orders a batch.

        Allocates the blocks the step writes; may preempt running sequences and admit waiting ones.
        """
        num_preempted = self.num_preempted
        generation = self._schedule_generation()
        budget = self.limits.max_num_tokens - len(generation)
        contexts: list[Scheduled] = []
        for sequence in self.running:
            if sequence.num_left > 1 and budget > 0:
                count = min(sequence.num_left, budget)
                contexts.append(Scheduled(sequence, count))
                budget -= count
        # Blocks just taken from a preempted sequence are for the ones that needed them.
        if self.num_preempted == num_preempted:
            self._admit(contexts, budget)
        return contexts + generation

    def advance(self, step: list[Scheduled]) -> None:
        """Record that the engine has computed `step`; full blocks become findable."""
        tokens_per_block = self.limits.tokens_per_block
        reuse = self.config.enable_kv_cache_reuse
        for scheduled in step:
            sequence = scheduled.sequence
            sequence.num_computed += scheduled.num_tokens
            num_full = sequence.num_computed // tokens_per_block
            if reuse and num_full > sequence.num_published:
                sequence.extend_digests(num_full, tokens_per_block)
                for index in range(sequence.num_published, num_full):
                    self.blocks.publish(sequence.blocks[index], sequence.digests[index])
                sequence.num_published = num_full

    def _schedule_generation(self) -> list[Scheduled]:
        """Give each sequence in generation its token and, at a block's end, another block."""
        tokens_per_block = self.limits.tokens_per_block
        generation: list[Scheduled] = []
        index = 0
        while index < len(self.running) and len(generation) < self.limits.max_num_tokens:
            sequence = self.running[index]
            index += 1
            if sequence.num_left != 1:
                continue
            if sequence.num_computed == len(sequence.blocks) * tokens_per_block:
                while not self.blocks.num_available and self.running[-1] is not sequence:
                    self._preempt(self.running[-1])
                if not self.blocks.num_available:
                    self._preempt(sequence)
                    break
                sequence.blocks += self.blocks.allocate(1)
            generation.append(Scheduled(sequence, 1))
        return generation

    def _preempt(self, sequence: Sequence) -> None:
        """Send a running sequence back to the queue; its tokens so far are its prompt now."""
        assert self.config.policy == "max_utilization", "guaranteed_no_evict ran out of blocks"
        self._stop(sequence)
        self.num_preempted += 1
        self.add(sequence)

    def _stop(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        self.running.remove(sequence)
        self._free_slots.append(sequence.slot)
        self.blocks.release(sequence.blocks)
        sequence.slot = None
        sequence.blocks = []
        sequence.num_computed = sequence.num_published = sequence.num_tabled = 0

    def _admit(self, contexts: list[Scheduled], budget: int) -> None:
        """Start waiting sequences in order of service until one does not fit; none is overtaken."""
        while self.waiting and self._free_slots and budget > 0:
            sequence = self.waiting[-1]
            shared = self._find_prefix(sequence)
            num_left = len(sequence.tokens) - len(shared) * self.limits.tokens_per_block
            if not self._may_chunk(sequence) and num_left > budget:
                return
            if not self._has_blocks(sequence, shared):
                return
            self.waiting.pop()
            self._start(sequence, shared)
            count = min(num_left, budget)
            contexts.append(Scheduled(sequence, count))
            budget -= count

    def _may_chunk(self, sequence: Sequence) -> bool:
        return (
            self.config.enable_chunked_context or len(sequence.tokens) > self.limits.max_num_tokens
        )

    def _find_prefix(self, sequence: Sequence) -> list[int]:
        """Return computed blocks `sequence` begins with; at least one token is left to compute."""
        if not self.config.enable_kv_cache_reuse:
            return []
        tokens_per_block = self.limits.tokens_per_block
        count = (len(sequence.tokens) - 1) // tokens_per_block
        return self.blocks.find(sequence.extend_digests(count, tokens_per_block))

    def _has_blocks(self, sequence: Sequence, shared: list[int]) -> bool:
        available = self.blocks.num_available - self.blocks.num_idle(shared)
        if self.config.policy == "guaranteed_no_evict":
            promised = sum(self._worst_case(s) - len(s.blocks) for s in self.running)
            return available - promised >= self._worst_case(sequence) - len(shared)
        # A block of headroom for each running sequence, lest the newcomer be preempted at once.
        return available - len(self.running) >= self._num_blocks(len(sequence.tokens)) - len(shared)

    def _start(self, sequence: Sequence, shared: list[int]) -> None:
        self.blocks.share(shared)
        count = self._num_blocks(len(sequence.tokens)) - len(shared)
        sequence.blocks = shared + self.blocks.allocate(count)
        sequence.num_computed = len(shared) * self.limits.tokens_per_block
        sequence.num_published = len(shared)
        sequence.slot = self._free_slots.pop()
        self.num_reused_blocks += len(shared)
        insort(self.running, sequence, key=lambda s: s.key)

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.limits.tokens_per_block)

    def _worst_case(self, sequence: Sequence) -> int:
        return self._num_blocks(sequence.max_cached_tokens)
