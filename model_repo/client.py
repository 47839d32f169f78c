"""Ask a served repository over gRPC and read its answer as it comes.

Leaving the iterator early cancels the request in the server.
"""

import contextlib
import logging
import queue
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from llmc.errors import ServeError, UnavailableError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """What `ensemble` and `tensorrt_llm_bls` are asked; None leaves the default to them.

    With `apply_chat_template`, `text_input` is a JSON list of messages.
    """

    text_input: str
    max_tokens: int
    stream: bool = True
    apply_chat_template: bool | None = None
    exclude_input_in_output: bool | None = True
    stop_words: tuple[str, ...] = ()
    bad_words: tuple[str, ...] = ()
    end_id: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    return_log_probs: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratePiece:
    """One response of a stream. `finish_reason` comes with the last one; counts are so far."""

    text: str
    num_input_tokens: int
    num_output_tokens: int
    finish_reason: str | None = None
    log_probs: tuple[float, ...] | None = None
    cum_log_prob: float | None = None


TYPES: dict[str, tuple[str, Any]] = {
    "text_input": ("BYTES", np.object_),
    "max_tokens": ("INT32", np.int32),
    "stream": ("BOOL", np.bool_),
    "apply_chat_template": ("BOOL", np.bool_),
    "exclude_input_in_output": ("BOOL", np.bool_),
    "stop_words": ("BYTES", np.object_),
    "bad_words": ("BYTES", np.object_),
    "end_id": ("INT32", np.int32),
    "temperature": ("FP32", np.float32),
    "top_k": ("INT32", np.int32),
    "top_p": ("FP32", np.float32),
    "min_p": ("FP32", np.float32),
    "min_tokens": ("INT32", np.int32),
    "repetition_penalty": ("FP32", np.float32),
    "presence_penalty": ("FP32", np.float32),
    "frequency_penalty": ("FP32", np.float32),
    "seed": ("UINT64", np.uint64),
    "return_log_probs": ("BOOL", np.bool_),
}
"""Input of the text models → its type, as Triton's wire and as numpy spell it."""


RETRY_PAUSE_SECONDS = 0.5
# Errors within a stream have no status. Asked for one (triton_grpc_error) the server of release
# 24.10 ends: "HandleCancellation called even when the context was not cancelled".
SIGNS_OF_AN_END = (UnavailableError.SIGN, "Stream removed", "Stub process")
"""What is in the message of llmc's models, of a broken connection, of Triton without a model."""


def make_inputs(request: GenerateRequest) -> list[Any]:
    """Return the tensors of a request, [1, …] each, without those that are not given."""
    inputs = []
    for name, (datatype, dtype) in TYPES.items():
        value = getattr(request, name)
        if value is None or value == ():
            continue
        values = value if isinstance(value, tuple) else (value,)
        encoded = [item.encode() if isinstance(item, str) else item for item in values]
        tensor = triton.InferInput(name, [1, len(encoded)], datatype)
        tensor.set_data_from_numpy(np.array([encoded], dtype))
        inputs.append(tensor)
    return inputs


def generate(
    url: str,
    request: GenerateRequest,
    *,
    model: str = "ensemble",
    request_id: str = "",
    timeout_seconds: float | None = None,
    retry_seconds: float = 0.0,
) -> Generator[GeneratePiece, None, None]:
    """Send `request` to `url` (host:port of gRPC) and yield its responses.

    `timeout_seconds` bounds the wait for each response. While the server is unavailable a request
    without a response so far is sent again, for `retry_seconds`. Closing the iterator cancels the
    request.

    Raises: UnavailableError when the server is not there, full, or ends; ServeError when it refuses
    the request or takes too long.
    """
    deadline: float | None = None
    begun = False
    while True:
        try:
            with contextlib.closing(
                _ask(url, request, model, request_id, timeout_seconds)
            ) as answer:
                for piece in answer:
                    begun = True
                    yield piece
            return
        except UnavailableError as error:
            now = time.monotonic()
            deadline = now + retry_seconds if deadline is None else deadline
            if begun or now >= deadline:
                raise
            log.warning("%s; asking again, for %.0f s", error.message, deadline - now)
        time.sleep(RETRY_PAUSE_SECONDS)


def _ask(
    url: str,
    request: GenerateRequest,
    model: str,
    request_id: str,
    timeout_seconds: float | None,
) -> Generator[GeneratePiece, None, None]:
    responses: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    client = triton.InferenceServerClient(url)
    finished = False
    try:
        client.start_stream(lambda result, error: responses.put((result, error)))
        try:
            client.async_stream_infer(
                model,
                make_inputs(request),
                request_id=request_id,
                enable_empty_final_response=True,
            )
        except InferenceServerException:
            # The stream has failed already; why is what the callback was told, and is raised below.
            log.debug("%s: request not sent", url, exc_info=True)
        while not finished:
            try:
                result, error = responses.get(timeout=timeout_seconds)
            except queue.Empty:
                raise ServeError(f"{url}: no response for {timeout_seconds:g} s") from None
            if error is not None:
                finished = True
                raise _serve_error(url, error)
            message = result.get_response()
            finished = message.parameters["triton_final_response"].bool_param
            if result.as_numpy("text_output") is not None:
                yield _read_piece(result)
    finally:
        client.stop_stream(cancel_requests=not finished)
        client.close()


def _read_piece(result: Any) -> GeneratePiece:
    def scalar(name: str) -> Any:
        array = result.as_numpy(name)
        return None if array is None or array.size == 0 else array.reshape(-1)[0].item()

    log_probs = result.as_numpy("output_log_probs")
    reason = result.as_numpy("finish_reason")
    return GeneratePiece(
        text=result.as_numpy("text_output").reshape(-1)[0].decode(),
        num_input_tokens=scalar("num_input_tokens") or 0,
        num_output_tokens=scalar("num_output_tokens") or 0,
        finish_reason=None if reason is None else reason.reshape(-1)[0].decode(),
        log_probs=None if log_probs is None else tuple(log_probs.reshape(-1).tolist()),
        cum_log_prob=scalar("cum_log_probs"),
    )


def _serve_error(url: str, error: Any) -> ServeError:
    if not isinstance(error, InferenceServerException):
        return ServeError(f"{url}: {error}")
    message = f"{url}: {error.message()}"
    ends = any(sign in message for sign in SIGNS_OF_AN_END)
    if error.status() != "StatusCode.UNAVAILABLE" and not ends:
        return ServeError(message)
    return UnavailableError(message, hint="is `llmc serve` running there? --url is the gRPC port's")
