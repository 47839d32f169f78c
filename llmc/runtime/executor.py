"""The executor: one loop thread that steps the engine, one that talks to the clients.

Same verbs as TensorRT-LLM's Executor: enqueue, await responses, cancel, shut down. The loop thread
owns the batcher and touches no client; the dispatch thread turns its events into responses
(detokenizing while the next step runs) and hands them to callbacks and waiting threads.
"""

import itertools
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from llmc.errors import UnavailableError
from llmc.runtime.admission import check_request
from llmc.runtime.engine import (
    Engine,
    EngineLimits,
    EngineLostError,
    KvCacheConfig,
    RankConfig,
)
from llmc.runtime.inflight import Event, InflightBatcher, IterationStats
from llmc.runtime.mailbox import Mailbox
from llmc.runtime.request import Request, Response
from llmc.runtime.sampling import SamplerState
from llmc.runtime.scheduler import SchedulerConfig
from llmc.runtime.sequence import Sequence
from llmc.runtime.text import TextStream
from llmc.runtime.tokenizer import IncrementalDecoder, Tokenizer

log = logging.getLogger(__name__)

OnResponse = Callable[[Response], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorConfig:
    """How an engine is served. `max_queue_size` bounds the requests accepted and not finished.

    `skip_special_tokens` leaves special tokens out of the text.
    """

    kv: KvCacheConfig = field(default_factory=KvCacheConfig)
    ranks: RankConfig = field(default_factory=RankConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    max_queue_size: int | None = None
    skip_special_tokens: bool = True


class Executor:
    """Serves one engine, which it owns: `shutdown` closes it. All methods are thread-safe."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer | None,
        config: ExecutorConfig,
        *,
        reopen: Callable[[], Engine] | None = None,
    ) -> None:
        """Serve `engine`; should it be lost, `reopen` makes another, for `config.ranks` times."""
        self.limits: EngineLimits = engine.limits
        self._reopen, self._num_restarts = reopen, 0
        self._engine = engine
        self._tokenizer = tokenizer
        self._config = config
        self._batcher = InflightBatcher(engine, config.scheduler)
        self._ids = itertools.count(1)
        self._lock = threading.Condition()
        # All guarded by _lock:
        self._inbox: list[Sequence] = []
        self._cancels: set[int] = set()
        self._live: set[int] = set()
        self._closing: str | None = None
        self._abandon = False
        self._failed = False
        self._running: dict[int, Sequence] = {}
        # Shared with nobody but the two threads:
        self._events: queue.SimpleQueue[list[Event] | None] = queue.SimpleQueue()
        self._callbacks: dict[int, OnResponse] = {}
        self._mailbox = Mailbox()
        self._loop_thread = threading.Thread(target=self._loop, name="llmc-executor", daemon=True)
        self._dispatch_thread = threading.Thread(
            target=self._dispatch, name="llmc-responses", daemon=True
        )
        self._loop_thread.start()
        self._dispatch_thread.start()

    def enqueue(self, request: Request, on_response: OnResponse | None = None) -> int:
        """Accept a request and return its id.

        With `on_response` each response is passed to it on the dispatch thread: it should be quick,
        and an exception from it cancels the request. Otherwise `await_responses` has them.

        Raises: ServeError when the request can't be served; UnavailableError when the queue is
        full, or the executor was shut down or has failed.
        """
        check_request(
            request,
            self.limits,
            chunked_context=self._config.scheduler.enable_chunked_context,
            has_tokenizer=self._tokenizer is not None,
        )
        sequence = self._new_sequence(request)
        request_id = sequence.request_id
        with self._lock:
            if self._closing is not None:
                raise UnavailableError(f"request refused: {self._closing}")
            if self._config.max_queue_size is not None:
                if len(self._live) >= self._config.max_queue_size:
                    raise UnavailableError(
                        f"request refused: {len(self._live)} requests in flight, "
                        f"max_queue_size {self._config.max_queue_size}"
                    )
            self._live.add(request_id)
            if on_response is not None:
                self._callbacks[request_id] = on_response
            else:
                self._mailbox.open(request_id)
            self._inbox.append(sequence)
            self._lock.notify_all()
        return request_id

    def await_responses(
        self, request_id: int | None = None, timeout: float | None = None
    ) -> list[Response]:
        """Wait for responses of one request, or of any without a callback, and take them.

        Returns an empty list when `timeout` seconds pass, or when the executor has ended and there
        is nothing left. Raises: ServeError for an id that is unknown or whose last response was
        taken.
        """
        return self._mailbox.take(request_id, timeout)

    def cancel(self, request_id: int) -> None:
        """End a request within one iteration; unknown and finished ids are ignored.

        Its last response says "cancelled", unless it ended by itself first.
        """
        with self._lock:
            if request_id in self._live:
                self._cancels.add(request_id)
                self._lock.notify_all()

    def stats(self) -> IterationStats:
        """Return the state after the last iteration."""
        return self._batcher.stats

    @property
    def failure(self) -> str | None:
        """Why new requests are refused: a failed engine, or a shutdown. None while all is well."""
        return self._closing

    @property
    def is_failed(self) -> bool:
        """Whether the engine is lost and no other takes its place."""
        return self._failed

    def fail(self, reason: str) -> None:
        """End every request with an error and refuse new ones, from any thread.

        For an engine that will never return from its step. Returns when every client was told.
        """
        if self._fail(reason):
            self._events.put(None)
            self._dispatch_thread.join()

    def shutdown(self, *, drain: bool = True) -> None:
        """Refuse new requests, finish (`drain`) or cancel the accepted ones, and close the engine.

        May be called again, also to stop draining. Not from a response callback.
        """
        assert threading.current_thread() is not self._dispatch_thread, "called from a callback"
        with self._lock:
            if self._closing is None:
                self._closing = "the executor was shut down"
            self._abandon = self._abandon or not drain
            self._lock.notify_all()
        self._loop_thread.join()
        self._dispatch_thread.join()

    def __enter__(self) -> "Executor":
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown(drain=exc is None)

    def _new_sequence(self, request: Request) -> Sequence:
        decoder = None
        if self._tokenizer is not None:
            skip = self._config.skip_special_tokens
            decoder = IncrementalDecoder(self._tokenizer, skip_special_tokens=skip)
        return Sequence(
            request_id=next(self._ids),
            request=request,
            sampler=SamplerState(request, self.limits.vocab_size),
            stream=TextStream(
                decoder,
                stops=request.stop,
                prefix=() if request.exclude_input else request.prompt_ids,
            ),
            tokens=list(request.prompt_ids),
            num_prompt=len(request.prompt_ids),
        )

    # The loop thread.

    def _loop(self) -> None:
        try:
            while self._receive():
                if not self._batcher.is_idle:
                    self._step()
        except Exception as error:  # the thread's boundary: reported to every client
            log.exception("the engine failed; every request in flight ends with an error")
            self._fail(f"the engine failed: {type(error).__name__}: {error}")
        finally:
            try:
                self._engine.close()
            finally:
                self._events.put(None)

    def _step(self) -> None:
        try:
            events = self._batcher.step()
        except EngineLostError as error:
            if self._reopen is None or self._num_restarts == self._config.ranks.max_restarts:
                raise
            self._restart(self._reopen, error.message)
        else:
            self._emit(events)

    def _restart(self, reopen: Callable[[], Engine], reason: str) -> None:
        """Go on with another engine: what had begun ends with an error, the rest is queued again.

        Raises: what `reopen` raises; then everything ends.
        """
        self._num_restarts += 1
        begun, waiting = self._batcher.abandon()
        log.error(
            "%s; restart %d of %d: %d requests had begun and end, %d are queued again",
            reason,
            self._num_restarts,
            self._config.ranks.max_restarts,
            len(begun),
            len(waiting),
        )
        self._emit([_failed(sequence, f"the engine failed: {reason}") for sequence in begun])
        self._engine.close()
        self._engine = reopen()
        self.limits = self._engine.limits
        self._batcher = InflightBatcher(self._engine, self._config.scheduler)
        for sequence in waiting:
            self._batcher.add(sequence)

    def _receive(self) -> bool:
        """Wait for something to do and take it in; False when the loop is to end."""
        with self._lock:
            while not (self._inbox or self._cancels or self._closing) and self._batcher.is_idle:
                self._lock.wait()
            arrived, self._inbox = self._inbox, []
            cancels, self._cancels = self._cancels, set()
            if self._failed:
                return False
            closing = self._closing is not None
            abandon = self._abandon
            self._running |= {sequence.request_id: sequence for sequence in arrived}
        for sequence in arrived:
            self._batcher.add(sequence)
        if abandon:
            cancels = set(self._running)
        found = [self._running[i] for i in sorted(cancels) if i in self._running]
        if found:
            self._emit([self._batcher.cancel(sequence) for sequence in found])
            self._batcher.refresh_stats()
        return not (closing and self._batcher.is_idle)

    def _emit(self, events: list[Event]) -> None:
        with self._lock:
            if not events or self._failed:
                return
            for event in events:
                if event.is_final:
                    del self._running[event.sequence.request_id]
            self._events.put(events)

    def _fail(self, reason: str) -> bool:
        """End everything; False when that had happened before."""
        with self._lock:
            if self._failed:
                return False
            self._failed = True
            self._closing = reason
            lost = [*self._running.values(), *self._inbox]
            self._inbox = []
            self._running.clear()
            self._events.put([_failed(sequence, reason) for sequence in lost])
            return True

    # The dispatch thread.

    def _dispatch(self) -> None:
        while (events := self._events.get()) is not None:
            for event in events:
                self._deliver(event)
        self._mailbox.close()

    def _deliver(self, event: Event) -> None:
        sequence = event.sequence
        request_id = sequence.request_id
        response = _response(event)
        if response.is_final:
            with self._lock:
                self._live.discard(request_id)
                self._cancels.discard(request_id)
        if self._mailbox.put(response):
            return
        callback = self._callbacks.get(request_id)
        if callback is None:  # dropped after it raised
            return
        if response.is_final:
            del self._callbacks[request_id]
        try:
            callback(response)
        except Exception:  # a client's mistake must not end the others' answers
            log.exception("request %d: its response callback raised; cancelled", request_id)
            self._callbacks.pop(request_id, None)
            self.cancel(request_id)


def _failed(sequence: Sequence, reason: str) -> Event:
    """Return the last event of a sequence the engine took down with it."""
    return Event(
        sequence=sequence,
        is_first=False,
        token_ids=[],
        log_probs=None,
        cum_log_prob=None,
        num_output=sequence.num_output,
        text="",
        error=reason,
        is_lost=True,
    )


def _response(event: Event) -> Response:
    """Complete an event with its text, unless the loop had to decode it already."""
    sequence = event.sequence
    text = event.text
    if text is None:
        text, _ = sequence.stream.push(event.token_ids)
        if event.is_final:
            text += sequence.stream.finish()[0]
    with_prompt = event.is_first and not sequence.request.exclude_input
    return Response(
        request_id=sequence.request_id,
        token_ids=(sequence.request.prompt_ids if with_prompt else ()) + tuple(event.token_ids),
        text=text,
        log_probs=None if event.log_probs is None else tuple(event.log_probs),
        cum_log_prob=event.cum_log_prob,
        finish_reason=event.finish_reason,
        error=event.error,
        is_lost=event.is_lost,
        num_input_tokens=sequence.num_prompt,
        num_output_tokens=event.num_output,
    )
