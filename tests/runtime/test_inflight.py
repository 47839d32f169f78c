"""The batcher over a real attention model: what a request answers never depends on its company."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmc.runtime.inflight import Event, InflightBatcher
from llmc.runtime.request import Request, SamplingParams
from llmc.runtime.sampling import SamplerState
from llmc.runtime.scheduler import BatchSchedulerPolicy, SchedulerConfig
from llmc.runtime.sequence import Sequence
from llmc.runtime.text import TextStream
from tests.runtime.paged_engine import LIMITS, PagedEngine

PLAIN = SchedulerConfig(enable_chunked_context=False, enable_kv_cache_reuse=False)


def sequence_of(request_id: int, request: Request) -> Sequence:
    return Sequence(
        request_id=request_id,
        request=request,
        sampler=SamplerState(request, LIMITS.vocab_size),
        stream=TextStream(None, stops=()),
        tokens=list(request.prompt_ids),
        num_prompt=len(request.prompt_ids),
    )


def check(batcher: InflightBatcher) -> None:
    scheduler = batcher.scheduler
    scheduler.blocks.check([s.blocks for s in scheduler.running])
    stats = batcher.stats
    assert stats.used_blocks + stats.free_blocks == stats.max_blocks
    assert stats.used_blocks == len({b for s in scheduler.running for b in s.blocks})


def answer(batcher: InflightBatcher, requests: list[Request]) -> list[tuple[list[int], str]]:
    """Answer all requests together; return each one's tokens and finish reason."""
    for i, request in enumerate(requests):
        batcher.add(sequence_of(i, request))
    return collect(batcher, len(requests))


def collect(batcher: InflightBatcher, count: int) -> list[tuple[list[int], str]]:
    tokens: list[list[int]] = [[] for _ in range(count)]
    reasons: list[str] = [""] * count
    while not batcher.is_idle:
        for event in batcher.step():
            assert event.error is None
            tokens[event.sequence.request_id] += event.token_ids
            assert event.num_output == len(tokens[event.sequence.request_id])
            reasons[event.sequence.request_id] = event.finish_reason or ""
        check(batcher)
    assert batcher.stats.used_blocks == 0 and batcher.stats.active == 0
    return list(zip(tokens, reasons, strict=True))


def alone(request: Request) -> tuple[list[int], str]:
    """The answer with a pool to itself, no chunks, no reuse: the reference for every mix."""
    engine = PagedEngine(max_num_tokens=96)
    return answer(InflightBatcher(engine, PLAIN), [request])[0]


def prompt_of(seed: int, length: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, LIMITS.vocab_size, length).tolist())


def test_the_test_engine_agrees_with_attention_without_pages() -> None:
    prompt = prompt_of(0, 13)
    tokens = list(prompt)
    engine = PagedEngine()
    for _ in range(12):
        tokens.append(int(engine.recompute_logits(tokens).argmax()))
    output, reason = alone(Request(prompt_ids=prompt, max_tokens=12))
    assert output == tokens[13:] and reason == "length"
    assert len(set(output)) > 3, "a model that repeats itself would hide wrong positions"


def test_end_ids_end_the_output_and_are_not_in_it() -> None:
    request = Request(prompt_ids=prompt_of(0, 13), max_tokens=12)
    full, _ = alone(request)
    end = full[4]
    cut = full[: full.index(end)]
    assert alone(replace(request, end_ids=(end, 60))) == (cut, "end_id")
    longer, _ = alone(replace(request, end_ids=(end,), sampling=SamplingParams(min_tokens=9)))
    assert len(longer) >= 9 and longer[: len(cut)] == cut and end not in longer


def test_a_streaming_request_reports_each_token_and_log_probs_add_up() -> None:
    request = Request(
        prompt_ids=prompt_of(1, 6), max_tokens=7, streaming=True, return_log_probs=True
    )
    engine = PagedEngine()
    batcher = InflightBatcher(engine, PLAIN)
    batcher.add(sequence_of(0, request))
    events: list[Event] = []
    while not batcher.is_idle:
        events += batcher.step()
    assert [len(e.token_ids) for e in events] == [1] * 7
    assert [e.is_first for e in events] == [True] + [False] * 6
    assert [e.finish_reason for e in events] == [None] * 6 + ["length"]
    tokens = list(request.prompt_ids)
    total = 0.0
    for event in events:
        logits = engine.recompute_logits(tokens).astype(np.float64)
        expected = logits[event.token_ids[0]] - np.log(np.exp(logits).sum())
        assert event.log_probs is not None and len(event.log_probs) == 1
        assert event.log_probs[0] == pytest.approx(expected, abs=1e-5)  # float32 exponentials
        total += event.log_probs[0]
        assert event.cum_log_prob == pytest.approx(total)
        tokens += event.token_ids
    whole = answer(InflightBatcher(PagedEngine(), PLAIN), [replace(request, streaming=False)])
    assert whole[0][0] == tokens[6:]


def test_chunked_context_computes_the_same() -> None:
    request = Request(prompt_ids=prompt_of(2, 50), max_tokens=10)
    engine = PagedEngine(max_num_tokens=7)
    config = SchedulerConfig(enable_chunked_context=True, enable_kv_cache_reuse=False)
    (got,) = answer(InflightBatcher(engine, config), [request])
    assert got == alone(request)
    assert [b.num_tokens for b in engine.batches[:8]] == [7] * 7 + [1]
    assert [len(b.logits_rows) for b in engine.batches[:8]] == [0] * 7 + [1]


def test_penalties_see_the_generated_tokens() -> None:
    request = Request(prompt_ids=prompt_of(2, 5), max_tokens=40)
    assert len(set(alone(request)[0])) < 40
    never_again = SamplingParams(presence_penalty=1000.0)
    tokens, _ = alone(replace(request, sampling=never_again))
    assert len(set(tokens) | set(request.prompt_ids)) == 40 + len(set(request.prompt_ids))


def test_prefix_reuse_computes_less_and_the_same() -> None:
    shared = prompt_of(3, 22)
    requests = [
        Request(prompt_ids=shared + prompt_of(4 + i, 3 + i), max_tokens=8) for i in range(4)
    ]
    engine = PagedEngine()
    batcher = InflightBatcher(engine, SchedulerConfig(enable_kv_cache_reuse=True))
    for request in requests:
        assert answer(batcher, [request]) == [alone(request)]
    assert batcher.stats.reused_blocks_total == 3 * (22 // 4)
    # A conversation: the next prompt contains the first one's answer.
    output, _ = alone(requests[0])
    again = Request(prompt_ids=requests[0].prompt_ids + tuple(output) + (1,), max_tokens=8)
    before = batcher.stats.reused_blocks_total
    assert answer(batcher, [again]) == [alone(again)]
    assert batcher.stats.reused_blocks_total - before == (25 + 8 - 1) // 4, "generated blocks too"


def test_preemption_changes_nothing_but_the_work() -> None:
    requests = [
        Request(
            prompt_ids=prompt_of(10 + i, 5),
            max_tokens=30,
            sampling=SamplingParams(top_k=0, seed=i) if i % 2 else SamplingParams(),
        )
        for i in range(4)
    ]
    for reuse in (False, True):
        config = SchedulerConfig(policy="max_utilization", enable_kv_cache_reuse=reuse)
        batcher = InflightBatcher(PagedEngine(num_blocks=14), config)
        assert answer(batcher, requests) == [alone(r) for r in requests]
        assert batcher.stats.paused_total > 0


def test_cancel_frees_blocks_at_once_and_reports_what_there_is() -> None:
    batcher = InflightBatcher(PagedEngine(), PLAIN)
    running, waiting = (
        sequence_of(i, Request(prompt_ids=prompt_of(i, 5), max_tokens=20)) for i in range(2)
    )
    batcher.add(running)
    for _ in range(3):
        assert batcher.step() == []
    batcher.add(waiting)
    event = batcher.cancel(running)
    assert (event.finish_reason, len(event.token_ids)) == ("cancelled", 3)
    event = batcher.cancel(waiting)
    assert (event.finish_reason, event.token_ids) == ("cancelled", [])
    batcher.refresh_stats()
    assert batcher.is_idle and batcher.stats.used_blocks == 0
    check(batcher)


def test_nan_logits_end_only_the_request_they_belong_to() -> None:
    class Broken(PagedEngine):
        def forward(self, batch):  # type: ignore[no-untyped-def]
            logits = super().forward(batch)
            logits[batch.token_ids[batch.logits_rows] == 7] = np.nan
            return logits

    batcher = InflightBatcher(Broken(), PLAIN)
    good = Request(prompt_ids=(1, 2, 3), max_tokens=1)
    for i, request in enumerate((good, replace(good, prompt_ids=(1, 7)))):
        batcher.add(sequence_of(i, request))
    events = sorted(batcher.step(), key=lambda e: e.sequence.request_id)
    assert [e.finish_reason for e in events] == ["length", None]
    assert events[0].error is None and "no finite value" in str(events[1].error)
    assert batcher.is_idle


def test_stats_tell_context_from_generation() -> None:
    batcher = InflightBatcher(PagedEngine(), PLAIN)
    batcher.add(sequence_of(0, Request(prompt_ids=prompt_of(0, 5), max_tokens=9)))
    batcher.step()
    batcher.add(sequence_of(1, Request(prompt_ids=prompt_of(1, 6), max_tokens=9)))
    batcher.step()
    stats = batcher.stats
    assert (stats.iteration, stats.active, stats.scheduled, stats.waiting) == (2, 2, 2, 0)
    assert (stats.context_requests, stats.context_tokens, stats.generation_requests) == (1, 6, 1)
    assert (stats.used_blocks, stats.free_blocks, stats.max_blocks) == (4, 252, 256)
    assert stats.tokens_per_block == 4 and stats.max_requests == 8


SAMPLINGS = [
    SamplingParams(),
    SamplingParams(top_k=0, seed=11),
    SamplingParams(top_p=0.9, temperature=1.3),
    SamplingParams(top_k=5, repetition_penalty=1.4, seed=3),
    SamplingParams(frequency_penalty=0.5, min_tokens=4),
]
POLICIES: list[BatchSchedulerPolicy] = ["guaranteed_no_evict", "max_utilization"]


@given(
    seed=st.integers(0, 10_000),
    policy=st.sampled_from(POLICIES),
    chunked=st.booleans(),
    reuse=st.booleans(),
    num_blocks=st.sampled_from([11, 16, 40]),
    max_num_tokens=st.sampled_from([21, 32]),
    max_batch_size=st.sampled_from([2, 8]),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_mix_answers_like_alone(
    seed: int,
    policy: BatchSchedulerPolicy,
    chunked: bool,
    reuse: bool,
    num_blocks: int,
    max_num_tokens: int,
    max_batch_size: int,
) -> None:
    """Random prompts with common beginnings, arriving and leaving at random."""
    driver = random.Random(seed)
    config = SchedulerConfig(
        policy=policy, enable_chunked_context=chunked, enable_kv_cache_reuse=reuse
    )
    engine = PagedEngine(
        num_blocks=num_blocks, max_num_tokens=max_num_tokens, max_batch_size=max_batch_size
    )
    batcher = InflightBatcher(engine, config)
    roots = [prompt_of(seed + i, 12) for i in range(2)]
    requests: list[Request] = []
    live: dict[int, Sequence] = {}
    got: dict[int, list[int]] = {}
    cancelled: set[int] = set()
    while len(requests) < 9 or live:
        if len(requests) < 9 and driver.random() < 0.5:
            i = len(requests)
            prompt = driver.choice(roots)[: driver.randint(1, 12)]
            prompt += prompt_of(i, driver.randint(0, 9))
            requests.append(
                Request(
                    prompt_ids=prompt,
                    max_tokens=driver.randint(1, 44 - len(prompt)),
                    sampling=driver.choice(SAMPLINGS),
                    end_ids=(driver.randint(0, 60), 5),
                    bad_words=driver.choice([(), ((9,), (3, 4))]),
                    streaming=driver.random() < 0.5,
                    priority=driver.choice([0.1, 0.5, 0.9]),
                )
            )
            live[i] = sequence_of(i, requests[i])
            batcher.add(live[i])
            got[i] = []
        events = []
        if live and driver.random() < 0.03:
            i = driver.choice(sorted(live))
            cancelled.add(i)
            events.append(batcher.cancel(live[i]))
            batcher.refresh_stats()
            check(batcher)
        if not batcher.is_idle:
            events += batcher.step()
            check(batcher)
        for event in events:
            assert event.error is None
            got[event.sequence.request_id] += event.token_ids
            if event.is_final:
                del live[event.sequence.request_id]
    for i, request in enumerate(requests):
        expected, _ = alone(request)
        if i in cancelled:
            expected = expected[: len(got[i])]
        assert got[i] == expected
    assert batcher.stats.used_blocks == 0
