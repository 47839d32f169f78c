"""An engine directory, ready to answer: engine, tokenizer, end ids and executor opened together."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from llmc.errors import ServeError
from llmc.runtime.executor import Executor, ExecutorConfig
from llmc.runtime.request import Request, SamplingParams
from llmc.runtime.tokenizer import Tokenizer
from llmc.runtime.worker import open_engine

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Text in, text out. `end_ids` are those of the model's generation_config.json."""

    executor: Executor
    tokenizer: Tokenizer
    end_ids: tuple[int, ...]

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


def open_session(engine_dir: Path, config: ExecutorConfig) -> Session:
    """Open an engine directory made by `llmc build`.

    An engine of several ranks is opened by rank 0 of an MPI job; the others run
    llmc.runtime.worker.serve_rank.
    Raises: CheckpointError for a broken directory, UnsupportedError for a machine that cannot run
    it, ToolchainError and ServeError when it needs an MPI job and there is none.
    """
    tokenizer = Tokenizer.open(engine_dir)
    engine = open_engine(engine_dir, config.kv)
    vocab_size = engine.limits.vocab_size
    end_ids = tuple(i for i in tokenizer.end_ids if 0 <= i < vocab_size)
    if len(end_ids) < len(tokenizer.end_ids):
        log.info(
            "end ids %s: those outside the vocabulary of %d cannot occur and are left out",
            tokenizer.end_ids,
            vocab_size,
        )
    executor = Executor(engine, tokenizer, config)
    return Session(executor=executor, tokenizer=tokenizer, end_ids=end_ids)
