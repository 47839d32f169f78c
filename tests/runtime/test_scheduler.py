"""The scheduler on integers: no engine, no tokens that mean anything."""

import random
from collections.abc import Callable

import pytest

from llmc.runtime.engine import EngineLimits
from llmc.runtime.request import Request
from llmc.runtime.sampling import SamplerState
from llmc.runtime.scheduler import BatchSchedulerPolicy, Scheduled, Scheduler, SchedulerConfig
from llmc.runtime.sequence import Sequence
from llmc.runtime.text import TextStream

Make = Callable[..., Sequence]


def limits_of(**changes: int) -> EngineLimits:
    fields = {
        "max_batch_size": 4,
        "max_num_tokens": 16,
        "max_input_len": 64,
        "max_seq_len": 64,
        "vocab_size": 100,
        "tokens_per_block": 4,
        "num_blocks": 32,
    }
    return EngineLimits(**{**fields, **changes})


def scheduler_of(
    policy: BatchSchedulerPolicy = "guaranteed_no_evict",
    *,
    chunked: bool = True,
    reuse: bool = False,
    **changes: int,
) -> Scheduler:
    config = SchedulerConfig(
        policy=policy, enable_chunked_context=chunked, enable_kv_cache_reuse=reuse
    )
    return Scheduler(limits_of(**changes), config)


def make(
    request_id: int,
    num_prompt: int,
    max_tokens: int = 8,
    *,
    priority: float = 0.5,
    token: int | None = None,
) -> Sequence:
    """A sequence whose prompt repeats `token` (by default its id, so that prompts differ)."""
    prompt = (request_id if token is None else token,) * num_prompt
    request = Request(prompt_ids=prompt, max_tokens=max_tokens, priority=priority)
    return Sequence(
        request_id=request_id,
        request=request,
        sampler=SamplerState(request, 100),
        stream=TextStream(None, stops=()),
        tokens=list(prompt),
        num_prompt=num_prompt,
    )


def run_step(scheduler: Scheduler) -> dict[int, int]:
    """Do one step as the batcher does, each row of logits yielding 99; return id -> tokens."""
    step = scheduler.schedule()
    check(scheduler, step)
    sampled = [s.sequence for s in step if s.wants_logits]
    scheduler.advance(step)
    for sequence in sampled:
        sequence.tokens.append(99)
        if sequence.num_output == sequence.request.max_tokens:
            scheduler.finish(sequence)
    check(scheduler, [])
    return {s.sequence.request_id: s.num_tokens for s in step}


def check(scheduler: Scheduler, step: list[Scheduled]) -> None:
    """Every invariant that holds between two calls."""
    limits = scheduler.limits
    scheduler.blocks.check([s.blocks for s in scheduler.running])
    assert len(scheduler.running) <= limits.max_batch_size
    slots = [s.slot for s in scheduler.running]
    assert None not in slots and len(set(slots)) == len(slots)
    assert [s.key for s in scheduler.running] == sorted(s.key for s in scheduler.running)
    assert [s.key for s in scheduler.waiting] == sorted(
        (s.key for s in scheduler.waiting), reverse=True
    )
    for sequence in scheduler.waiting:
        assert not sequence.blocks and sequence.num_computed == 0 and sequence.slot is None
    assert sum(s.num_tokens for s in step) <= limits.max_num_tokens
    assert len({s.sequence.request_id for s in step}) == len(step)
    for scheduled in step:
        sequence = scheduled.sequence
        end = sequence.num_computed + scheduled.num_tokens
        assert 0 < scheduled.num_tokens and end <= len(sequence.tokens)
        assert end <= len(sequence.blocks) * limits.tokens_per_block
        first = sequence.num_computed // limits.tokens_per_block
        for block in sequence.blocks[first:]:
            assert scheduler.blocks.references(block) == 1, "written while shared"


def test_contexts_come_first_and_generation_is_never_starved() -> None:
    scheduler = scheduler_of()
    scheduler.add(make(1, 3))
    assert run_step(scheduler) == {1: 3}
    scheduler.add(make(2, 40))
    step = scheduler.schedule()
    assert [(s.sequence.request_id, s.num_tokens) for s in step] == [(2, 15), (1, 1)]
    assert [s.is_context for s in step] == [True, False]
    assert [s.wants_logits for s in step] == [False, True]


def test_chunks_fill_the_budget_in_order_of_service() -> None:
    scheduler = scheduler_of()
    for i, num_prompt in ((1, 20), (2, 20), (3, 5)):
        scheduler.add(make(i, num_prompt))
    assert run_step(scheduler) == {1: 16}
    assert run_step(scheduler) == {1: 4, 2: 12}
    assert run_step(scheduler) == {1: 1, 2: 8, 3: 5}
    assert run_step(scheduler) == {1: 1, 2: 1, 3: 1}


def test_without_chunks_a_prompt_waits_for_a_step_it_fits() -> None:
    scheduler = scheduler_of(chunked=False)
    scheduler.add(make(1, 10, 2))
    scheduler.add(make(2, 10, 2))
    scheduler.add(make(3, 1, 2))
    assert run_step(scheduler) == {1: 10}, "3 does not overtake 2"
    assert run_step(scheduler) == {1: 1, 2: 10, 3: 1}


def test_admission_by_priority_then_arrival() -> None:
    scheduler = scheduler_of(max_batch_size=1)
    for i, priority in ((1, 0.5), (2, 0.1), (3, 0.9), (4, 0.9), (5, 0.5)):
        scheduler.add(make(i, 2, 1, priority=priority))
    assert [list(run_step(scheduler)) for _ in range(5)] == [[3], [4], [1], [5], [2]]


def test_guaranteed_no_evict_starts_only_what_is_sure_to_finish() -> None:
    scheduler = scheduler_of(num_blocks=6)
    # 4 + 8 tokens, the last never fed back: 11 tokens, 3 blocks each.
    for i in (1, 2, 3):
        scheduler.add(make(i, 4, 8))
    while scheduler.running or scheduler.waiting:
        ids = set(run_step(scheduler))
        assert ids in ({1, 2}, {3})
    assert scheduler.num_preempted == 0


def test_max_utilization_preempts_the_youngest_and_recomputes_it() -> None:
    scheduler = scheduler_of("max_utilization", num_blocks=4, max_batch_size=2)
    scheduler.add(make(1, 4, 9))
    scheduler.add(make(2, 3, 9))
    # Each will need 3 of the 4 blocks.
    history = []
    while scheduler.running or scheduler.waiting:
        history.append(run_step(scheduler))
    assert scheduler.num_preempted > 0
    resumed = [step[2] for step in history if step.get(2, 0) > 1]
    assert resumed[0] == 3 and resumed[1] > 3, "the generated tokens are part of the prompt now"
    assert sum(1 in step for step in history) == 9, "1 was never held up"
    assert scheduler.blocks.num_used == 0


def test_lowest_priority_is_preempted_before_younger_ones() -> None:
    scheduler = scheduler_of("max_utilization", num_blocks=8)
    for i, priority in ((1, 0.5), (2, 0.1), (3, 0.5)):
        scheduler.add(make(i, 4, 30, priority=priority))
    while not scheduler.num_preempted:
        run_step(scheduler)
    assert [s.request_id for s in scheduler.waiting] == [2]


def test_a_preempted_sequence_longer_than_a_step_returns_in_chunks() -> None:
    scheduler = scheduler_of("max_utilization", chunked=False, max_num_tokens=8)
    sequence = make(1, 8, 20)
    scheduler.add(sequence)
    for _ in range(6):
        run_step(scheduler)
    scheduler._preempt(sequence)
    assert len(sequence.tokens) == 14
    assert [run_step(scheduler)[1] for _ in range(3)] == [8, 6, 1]


def test_prefix_reuse_skips_full_blocks_but_leaves_a_token() -> None:
    scheduler = scheduler_of(reuse=True)
    scheduler.add(make(1, 8, 4, token=5))
    assert run_step(scheduler) == {1: 8}
    scheduler.add(make(2, 8, 4, token=5))
    scheduler.add(make(3, 11, 4, token=5))
    assert run_step(scheduler) == {1: 1, 2: 4, 3: 3}, "8 tokens: only 4 may be skipped; 11: 8"
    one, two, three = scheduler.running
    assert two.blocks[0] == one.blocks[0] and two.blocks[1] != one.blocks[1]
    assert three.blocks[:2] == one.blocks[:2]
    assert scheduler.num_reused_blocks == 3
    while scheduler.running:
        run_step(scheduler)
    assert scheduler.blocks.num_used == 0 and scheduler.blocks.num_cached > 0


def test_only_computed_blocks_are_reused() -> None:
    scheduler = scheduler_of(reuse=True)
    scheduler.add(make(1, 40, token=5))
    assert run_step(scheduler) == {1: 16}
    scheduler.add(make(2, 40, token=5))
    assert run_step(scheduler) == {1: 16}
    assert run_step(scheduler) == {1: 8, 2: 8}, "32 tokens were computed when 2 started"
    assert scheduler.num_reused_blocks == 8


def test_max_utilization_keeps_headroom_for_those_already_running() -> None:
    scheduler = scheduler_of("max_utilization", num_blocks=4)
    scheduler.add(make(1, 8, 4))
    scheduler.add(make(2, 8, 4))
    assert run_step(scheduler) == {1: 8}, "2 blocks are left, 1 is about to take one"
    assert [set(run_step(scheduler)) for _ in range(4)] == [{1}, {1}, {1}, {2}]
    assert scheduler.num_preempted == 0


def test_blocks_of_a_preempted_sequence_are_not_given_to_a_newcomer() -> None:
    scheduler = scheduler_of("max_utilization", num_blocks=5)
    for i in (1, 2):
        scheduler.add(make(i, 8, 12))
    assert run_step(scheduler) == {1: 8, 2: 8}
    scheduler.add(make(3, 1, 2, priority=0.9))
    assert run_step(scheduler) == {1: 1}, "both need the fifth block"
    assert scheduler.num_preempted == 1
    assert [s.request_id for s in scheduler.waiting] == [2, 3], "not even one with priority"
    assert 3 in run_step(scheduler)


def test_shared_blocks_count_once_against_the_pool() -> None:
    scheduler = scheduler_of(reuse=True, num_blocks=7)
    scheduler.add(make(1, 16, 4, token=5))  # 19 tokens: 5 blocks
    run_step(scheduler)
    scheduler.add(make(2, 17, 3, token=5))  # 5 blocks, 4 of them shared
    assert run_step(scheduler) == {1: 1, 2: 1}


def test_finish_takes_a_waiting_sequence_out() -> None:
    scheduler = scheduler_of(max_batch_size=1)
    one, two = make(1, 2), make(2, 2)
    scheduler.add(one)
    scheduler.add(two)
    run_step(scheduler)
    scheduler.finish(two)
    assert not scheduler.waiting
    scheduler.finish(one)
    assert not scheduler.running and scheduler.blocks.num_used == 0


@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization"])
@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_random_traffic(
    policy: BatchSchedulerPolicy, reuse: bool, chunked: bool, seed: int
) -> None:
    """Arrivals, cancellations and finishes at random: invariants hold, nobody is forgotten."""
    driver = random.Random(seed)
    scheduler = scheduler_of(policy, reuse=reuse, chunked=chunked, num_blocks=9)
    live: dict[int, Sequence] = {}
    next_id = 1
    for tick in range(2000):
        if tick < 200 and driver.random() < 0.2:
            num_prompt = driver.randint(1, 16)
            sequence = make(
                next_id,
                num_prompt,
                driver.randint(1, 36 - num_prompt),
                priority=driver.choice([0.1, 0.5, 0.9]),
                token=driver.randint(0, 2),
            )
            live[next_id] = sequence
            scheduler.add(sequence)
            next_id += 1
        if live and driver.random() < 0.05:
            scheduler.finish(live.pop(driver.choice(sorted(live))))
            check(scheduler, [])
        if scheduler.running or scheduler.waiting:
            assert run_step(scheduler), "a step must make progress"
        for sequence in list(live.values()):
            if sequence.num_output == sequence.request.max_tokens:
                del live[sequence.request_id]
        assert {s.request_id for s in scheduler.running + scheduler.waiting} == set(live)
        if policy == "guaranteed_no_evict":
            assert scheduler.num_preempted == 0
        if not live and tick > 200:
            break
    assert not live, "everything finishes once arrivals stop"
    assert scheduler.blocks.num_used == 0
