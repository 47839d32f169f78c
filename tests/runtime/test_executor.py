"""The executor's threads: what clients see, and that nobody is left waiting."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from llmc.errors import ServeError
from llmc.runtime.batch import Batch
from llmc.runtime.executor import Executor, ExecutorConfig
from llmc.runtime.request import Request, Response, SamplingParams
from llmc.runtime.scheduler import SchedulerConfig
from llmc.runtime.tokenizer import Tokenizer
from tests.runtime.paged_engine import LIMITS, PagedEngine

WAIT = 20.0
"""Seconds after which a test that waits for a thread has failed."""
VOCAB = 300
REQUEST = Request(prompt_ids=(1, 2, 3), max_tokens=6)


class GatedEngine(PagedEngine):
    """Steps only when told to, so that a test knows what has happened."""

    def __init__(self, **changes: int) -> None:
        super().__init__(replace(LIMITS, **changes))
        self.gate = threading.Semaphore(0)
        self.started = threading.Semaphore(0)
        self.error: Exception | None = None

    def forward(self, batch: Batch) -> npt.NDArray[np.float32]:
        self.started.release()
        assert self.gate.acquire(timeout=WAIT)
        if self.error is not None:
            raise self.error
        return super().forward(batch)

    def open(self) -> None:
        self.gate.release(10_000)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A byte-level BPE with a few merges and an end token, trained here."""
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    text = "the cat sat on the mat. \u00e9t\u00e9 \U0001f600 the end"
    bpe.train_from_iterator([text] * 3, trainer)
    bpe.save(str(directory / "tokenizer.json"))
    return Tokenizer.open(directory)


class ScriptedEngine(PagedEngine):
    """The paged model, but generated tokens follow a script per prompt: to test what text does."""

    def __init__(self, scripts: dict[tuple[int, ...], list[int]]) -> None:
        super().__init__(vocab_size=VOCAB)
        self.scripts = scripts
        self.tokens: dict[int, list[int]] = {}

    def forward(self, batch: Batch) -> npt.NDArray[np.float32]:
        logits = super().forward(batch)
        for s in range(batch.num_sequences):
            block = int(batch.block_tables[s, 0])
            start, end = batch.query_start[s], batch.query_start[s + 1]
            if batch.positions[start] == 0:
                self.tokens[block] = []
            self.tokens[block] += batch.token_ids[start:end].tolist()
        rows = np.searchsorted(batch.query_start, batch.logits_rows, side="right") - 1
        for row, s in enumerate(rows):
            tokens = self.tokens[int(batch.block_tables[s, 0])]
            for prompt, script in self.scripts.items():
                if tuple(tokens[: len(prompt)]) == prompt:
                    logits[row, script[len(tokens) - len(prompt)]] = 1e4
        return logits


@pytest.fixture
def gated() -> Iterator[tuple[GatedEngine, Executor]]:
    engine = GatedEngine()
    executor = Executor(engine, None, ExecutorConfig())
    yield engine, executor
    engine.open()
    executor.shutdown(drain=False)


def finish(executor: Executor, request_id: int) -> list[Response]:
    responses: list[Response] = []
    while not (responses and responses[-1].is_final):
        new = executor.await_responses(request_id, WAIT)
        assert new, "no response in time"
        responses += new
    return responses


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.001)


def test_streamed_and_whole_answers_are_equal() -> None:
    with Executor(PagedEngine(), None, ExecutorConfig()) as executor:
        whole = finish(executor, executor.enqueue(REQUEST))
        stream = finish(executor, executor.enqueue(replace(REQUEST, streaming=True)))
    assert len(whole) == 1 and len(stream) == 6
    (last,) = whole
    assert (last.finish_reason, last.num_input_tokens, last.num_output_tokens) == ("length", 3, 6)
    assert last.log_probs is None and last.cum_log_prob is None and last.text == ""
    assert sum((r.token_ids for r in stream), ()) == last.token_ids
    assert [r.num_output_tokens for r in stream] == [1, 2, 3, 4, 5, 6]
    assert [r.finish_reason for r in stream] == [None] * 5 + ["length"]


def test_many_threads_get_their_own_answers() -> None:
    requests = [
        Request(
            prompt_ids=(i, 60 - i, 7),
            max_tokens=5 + i % 4,
            sampling=SamplingParams(top_k=0, seed=i),
            streaming=bool(i % 2),
        )
        for i in range(24)
    ]
    answers: dict[int, tuple[int, ...]] = {}

    def client(executor: Executor, number: int) -> None:
        responses = finish(executor, executor.enqueue(requests[number]))
        answers[number] = sum((r.token_ids for r in responses), ())

    with Executor(PagedEngine(), None, ExecutorConfig()) as executor:
        threads = [threading.Thread(target=client, args=(executor, i)) for i in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        wait_until(lambda: executor.stats().used_blocks == 0)
        together = dict(answers)
        assert sorted(together) == list(range(24))
        for number in range(24):
            client(executor, number)
    assert answers == together


def test_callbacks_come_in_order_on_one_thread() -> None:
    seen: dict[int, list[Response]] = {}
    threads = set()
    done = threading.Semaphore(0)

    def on_response(response: Response) -> None:
        threads.add(threading.get_ident())
        seen.setdefault(response.request_id, []).append(response)
        if response.is_final:
            done.release()

    with Executor(PagedEngine(), None, ExecutorConfig()) as executor:
        ids = [executor.enqueue(replace(REQUEST, streaming=True), on_response) for _ in range(5)]
        for _ in ids:
            assert done.acquire(timeout=WAIT)
        assert executor.await_responses(timeout=0) == []
    assert sorted(seen) == ids and len(threads) == 1
    assert threads != {threading.get_ident()}
    for responses in seen.values():
        assert [r.num_output_tokens for r in responses] == [1, 2, 3, 4, 5, 6]


def test_a_callback_that_raises_cancels_its_request_and_no_other(
    gated: tuple[GatedEngine, Executor], caplog: pytest.LogCaptureFixture
) -> None:
    engine, executor = gated
    calls = []

    def on_response(response: Response) -> None:
        calls.append(response)
        raise ConnectionError("the client went away")

    executor.enqueue(replace(REQUEST, streaming=True, max_tokens=90), on_response)
    other = executor.enqueue(replace(REQUEST, max_tokens=90))
    for _ in range(3):
        assert engine.started.acquire(timeout=WAIT)
        engine.gate.release()
    wait_until(lambda: bool(calls))
    engine.open()
    assert finish(executor, other)[-1].finish_reason == "length"
    wait_until(lambda: executor.stats().used_blocks == 0)
    assert len(calls) == 1
    assert "client went away" in caplog.text


def test_await_takes_what_there_is_and_then_forgets_the_request() -> None:
    with Executor(PagedEngine(), None, ExecutorConfig()) as executor:
        ids = {executor.enqueue(REQUEST) for _ in range(3)}
        got: list[Response] = []
        while len(got) < 3:
            got += executor.await_responses(timeout=WAIT)
        assert {r.request_id for r in got} == ids
        assert executor.await_responses(timeout=0.01) == []
        with pytest.raises(ServeError, match=f"request {min(ids)} is unknown"):
            executor.await_responses(min(ids))
        with pytest.raises(ServeError, match="request 999 is unknown"):
            executor.await_responses(999)


def test_cancel_frees_blocks_within_one_iteration(gated: tuple[GatedEngine, Executor]) -> None:
    engine, executor = gated
    first = executor.enqueue(replace(REQUEST, max_tokens=50))
    second = executor.enqueue(replace(REQUEST, max_tokens=50, prompt_ids=(9,) * 9))
    assert engine.started.acquire(timeout=WAIT)
    engine.gate.release()
    assert engine.started.acquire(timeout=WAIT)
    iteration, used = executor.stats().iteration, executor.stats().used_blocks
    executor.cancel(second)
    executor.cancel(second)
    engine.gate.release()  # the iteration that was running when cancel was called
    assert finish(executor, second)[-1].finish_reason == "cancelled"
    assert engine.started.acquire(timeout=WAIT)
    assert executor.stats().used_blocks < used
    assert executor.stats().iteration == iteration + 1
    executor.cancel(first)
    engine.gate.release()
    response = finish(executor, first)[-1]
    assert (response.finish_reason, response.num_output_tokens) == ("cancelled", 3)
    wait_until(lambda: executor.stats().used_blocks == 0)
    executor.cancel(first)
    executor.cancel(12345)


def test_cancel_of_a_request_that_never_started(gated: tuple[GatedEngine, Executor]) -> None:
    engine, executor = gated
    executor.enqueue(REQUEST)
    assert engine.started.acquire(timeout=WAIT)
    late = executor.enqueue(REQUEST)
    executor.cancel(late)
    engine.gate.release()
    (response,) = finish(executor, late)
    assert (response.finish_reason, response.token_ids) == ("cancelled", ())


def test_shutdown_drains_what_was_accepted_and_refuses_the_rest() -> None:
    engine = GatedEngine(max_batch_size=2)
    executor = Executor(engine, None, ExecutorConfig())
    ids = [executor.enqueue(REQUEST) for _ in range(5)]
    assert engine.started.acquire(timeout=WAIT)
    closer = threading.Thread(target=executor.shutdown)
    closer.start()
    wait_until(lambda: executor.failure is not None)
    with pytest.raises(ServeError, match="request refused: the executor was shut down"):
        executor.enqueue(REQUEST)
    engine.open()
    closer.join(WAIT)
    assert not closer.is_alive() and engine.closed
    assert [finish(executor, i)[-1].finish_reason for i in ids] == ["length"] * 5
    assert executor.await_responses() == [], "nothing will come: nobody waits"


def test_shutdown_without_draining_cancels() -> None:
    engine = GatedEngine(max_batch_size=2)
    executor = Executor(engine, None, ExecutorConfig())
    ids = [executor.enqueue(REQUEST) for _ in range(4)]
    assert engine.started.acquire(timeout=WAIT)
    draining = threading.Thread(target=executor.shutdown)
    draining.start()
    wait_until(lambda: executor.failure is not None)
    closer = threading.Thread(target=lambda: executor.shutdown(drain=False))
    closer.start()
    wait_until(lambda: executor._abandon)
    engine.gate.release()
    closer.join(WAIT)
    draining.join(WAIT)
    assert engine.closed and not closer.is_alive() and not draining.is_alive()
    assert [finish(executor, i)[-1].finish_reason for i in ids] == ["cancelled"] * 4
    assert len(engine.batches) == 1


def test_a_failing_engine_ends_every_request_with_an_error(
    gated: tuple[GatedEngine, Executor],
) -> None:
    engine, executor = gated
    failed: list[Response] = []
    ids = [executor.enqueue(REQUEST)]
    assert engine.started.acquire(timeout=WAIT)
    ids += [executor.enqueue(REQUEST) for _ in range(12)]
    executor.enqueue(REQUEST, failed.append)
    engine.error = RuntimeError("illegal instruction")
    engine.gate.release()
    message = "the engine failed: RuntimeError: illegal instruction"
    for request_id in ids:
        response = finish(executor, request_id)[-1]
        assert (response.error, response.finish_reason) == (message, None)
    wait_until(lambda: bool(failed))
    assert failed[0].error == message
    with pytest.raises(ServeError, match="request refused: the engine failed: RuntimeError"):
        executor.enqueue(REQUEST)
    assert executor.failure == message
    executor.shutdown()
    assert engine.closed


def test_a_full_queue_refuses() -> None:
    engine = GatedEngine()
    with Executor(engine, None, ExecutorConfig(max_queue_size=2)) as executor:
        ids = [executor.enqueue(REQUEST) for _ in range(2)]
        with pytest.raises(ServeError, match="2 requests in flight, max_queue_size 2"):
            executor.enqueue(REQUEST)
        engine.open()
        for request_id in ids:
            finish(executor, request_id)
        finish(executor, executor.enqueue(REQUEST))


def test_a_refused_request_costs_nothing() -> None:
    with Executor(PagedEngine(), None, ExecutorConfig()) as executor:
        with pytest.raises(ServeError, match=r"prompt 3 \+ max_tokens 94 = 97 tokens"):
            executor.enqueue(replace(REQUEST, max_tokens=94))
        with pytest.raises(ServeError, match="stop strings need a tokenizer"):
            executor.enqueue(replace(REQUEST, stop=("x",)))
        assert executor.stats().iteration == 0


def scripted(tokenizer: Tokenizer, text: str, **fields: Any) -> list[Response]:
    """Let the engine answer `text`, character by character, and end; return the responses."""
    prompt = tuple(tokenizer.encode("the"))
    script = [i for char in text for i in tokenizer.encode(char)]
    engine = ScriptedEngine({prompt: script + [0] * 8})
    request = Request(prompt_ids=prompt, max_tokens=len(script) + 2, end_ids=(0,), streaming=True)
    request = replace(request, **fields)
    with Executor(engine, tokenizer, ExecutorConfig()) as executor:
        return finish(executor, executor.enqueue(request))


def test_text_arrives_in_whole_characters(tokenizer: Tokenizer) -> None:
    text = " \u00e9t\u00e9 \U0001f600 the"
    responses = scripted(tokenizer, text)
    assert "".join(r.text for r in responses) == text
    assert not any("\ufffd" in r.text for r in responses)
    assert any(r.token_ids and not r.text for r in responses), "the emoji takes several tokens"
    assert responses[-1].finish_reason == "end_id"
    assert responses[-1].token_ids == (), "the end token is no output"


def test_stop_strings_cut_the_text_and_end_the_request(tokenizer: Tokenizer) -> None:
    responses = scripted(tokenizer, "one. two! three", stop=("ee", "wo!"))
    assert "".join(r.text for r in responses) == "one. t"
    assert responses[-1].finish_reason == "stop"
    assert responses[-1].num_output_tokens == len("one. two!")
    (whole,) = scripted(tokenizer, "one. two! three", stop=("ee", "wo!"), streaming=False)
    assert (whole.text, whole.finish_reason, whole.num_output_tokens) == ("one. t", "stop", 9)


def test_held_back_text_is_delivered_at_the_end(tokenizer: Tokenizer) -> None:
    responses = scripted(tokenizer, "say STO", stop=("STOP",))
    assert "".join(r.text for r in responses) == "say STO"
    assert responses[-1].text == "STO" and responses[-1].finish_reason == "end_id"


@pytest.mark.parametrize("stop", [(), ("zzz",)])
def test_the_prompt_comes_along_when_asked_for(tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
    responses = scripted(tokenizer, " cat", exclude_input=False, stop=stop)
    prompt = tuple(tokenizer.encode("the"))
    assert responses[0].token_ids[: len(prompt)] == prompt
    assert len(responses[0].token_ids) == len(prompt) + 1
    assert all(len(r.token_ids) == 1 for r in responses[1:-1])
    assert "".join(r.text for r in responses) == "the cat"


def test_chunked_context_is_the_executors_to_allow() -> None:
    long = replace(REQUEST, prompt_ids=(5,) * 40)
    config = ExecutorConfig(scheduler=SchedulerConfig(enable_chunked_context=False))
    with Executor(PagedEngine(), None, config) as executor:
        with pytest.raises(ServeError, match="prompt of 40 tokens > max_num_tokens 32"):
            executor.enqueue(long)
    with Executor(PagedEngine(), None, ExecutorConfig()) as executor:
        assert finish(executor, executor.enqueue(long))[-1].finish_reason == "length"
