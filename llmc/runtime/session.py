"""An engine directory, ready to answer: engine, tokenizer, end ids and executor opened together."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from llmc.errors import ServeError
from llmc.runtime.engine import Engine, load_engine
from llmc.runtime.executor import Executor, ExecutorConfig
from llmc.runtime.orchestrator import StartRanks, open_orchestrated
from llmc.runtime.rank_files import read_mapping
from llmc.runtime.request import Request, SamplingParams
from llmc.runtime.tokenizer import Tokenizer
from llmc.runtime.worker import LeadEngine, end_job, end_process, lead, say_end

log = logging.getLogger(__name__)

_LAST_WORDS_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Text in, text out. `end_ids` are those of the model's generation_config.json.

    `end_process` ends this process and the ranks of its job, for a reason that is written to
    stderr: for a server whose engine is lost.
    """

    executor: Executor
    tokenizer: Tokenizer
    end_ids: tuple[int, ...]
    end_process: Callable[[str], None] = partial(end_process, 0)

    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int | None = None,
        sampling: SamplingParams | None = None,
        stop: Sequence[str] = (),
        add_special_tokens: bool = True,
    ) -> Iterator[str]:
        """Continue `prompt` and yield text as it comes; closing the iterator cancels the request.

        `max_tokens` None is as many as the engine's `max_seq_len` leaves. Raises: ServeError when
        the request is refused, at the call, or fails, while iterating.
        """
        prompt_ids = tuple(self.tokenizer.encode(prompt, add_special_tokens=add_special_tokens))
        limit = self.executor.limits.max_seq_len
        request = Request(
            prompt_ids=prompt_ids,
            max_tokens=max(1, limit - len(prompt_ids)) if max_tokens is None else max_tokens,
            sampling=sampling or SamplingParams(),
            end_ids=self.end_ids,
            stop=tuple(stop),
            streaming=True,
        )
        return self._stream(self.executor.enqueue(request))

    def chat(
        self,
        messages: list[dict[str, Any]],
        *,
        max_tokens: int | None = None,
        sampling: SamplingParams | None = None,
        stop: Sequence[str] = (),
    ) -> Iterator[str]:
        """Answer a conversation, put into the model's chat template; otherwise like `generate`."""
        return self.generate(
            self.tokenizer.apply_chat_template(messages),
            max_tokens=max_tokens,
            sampling=sampling,
            stop=stop,
            add_special_tokens=False,
        )

    def close(self, *, drain: bool = True) -> None:
        """Shut the executor down and release the engine."""
        self.executor.shutdown(drain=drain)

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(drain=exc is None)

    def _stream(self, request_id: int) -> Iterator[str]:
        done = False
        try:
            while not done:
                for response in self.executor.await_responses(request_id):
                    if response.error is not None:
                        done = True
                        raise ServeError(f"request {request_id} failed: {response.error}")
                    done = response.is_final
                    if response.text:
                        yield response.text
        finally:
            if not done:
                self.executor.cancel(request_id)


def open_session(
    engine_dir: Path, config: ExecutorConfig, *, start: StartRanks | None = None
) -> Session:
    """Open an engine directory made by `llmc build`.

    An engine of several ranks is opened by rank 0 of an MPI job, while the others are in
    llmc.runtime.worker.run_rank; or, as `config.ranks` says, its ranks are started by `start`.
    Raises: CheckpointError for a broken directory, UnsupportedError for a machine that cannot run
    it, ToolchainError and ServeError when it needs an MPI job and there is none.
    """
    tokenizer = Tokenizer.open(engine_dir)
    engine, reopen = _open_engine(engine_dir, config, start)
    vocab_size = engine.limits.vocab_size
    end_ids = tuple(i for i in tokenizer.end_ids if 0 <= i < vocab_size)
    if len(end_ids) < len(tokenizer.end_ids):
        log.info(
            "end ids %s: those outside the vocabulary of %d cannot occur and are left out",
            tokenizer.end_ids,
            vocab_size,
        )
    executor = Executor(engine, tokenizer, config, reopen=reopen)
    session = Session(executor=executor, tokenizer=tokenizer, end_ids=end_ids)
    if not isinstance(engine, LeadEngine):
        return session
    _end_with(engine, executor)
    return replace(session, end_process=partial(end_job, engine.comm))


def _open_engine(
    engine_dir: Path, config: ExecutorConfig, start: StartRanks | None
) -> tuple[Engine, Callable[[], Engine] | None]:
    """Return the engine and, where it can be had again when it is lost, how."""
    if read_mapping(engine_dir).world_size == 1:
        return load_engine(engine_dir, kv=config.kv), None
    if config.ranks.launch_mode == "leader":
        return lead(engine_dir, config.kv, config.ranks), None

    def open_again() -> Engine:
        return open_orchestrated(engine_dir, config.kv, config.ranks, start)

    return open_again(), open_again


def _end_with(engine: LeadEngine, executor: Executor) -> None:
    """Tell every client when a rank is lost, then end the job: its loop waits inside MPI."""

    def end(reason: str) -> None:
        say_end(reason)
        executor.fail(f"the engine failed: {reason}")
        # Responses are with the server; it needs a moment to send them before it is ended, too.
        time.sleep(_LAST_WORDS_SECONDS)
        end_job(engine.comm, reason)

    assert engine.watch is not None
    engine.watch.subscribe(end)
