"""Refuse a request that cannot be served before it costs anything, with reasons and numbers."""

import math
from collections.abc import Iterator

from llmc.errors import ServeError
from llmc.runtime.engine import EngineLimits
from llmc.runtime.request import Request, SamplingParams


def check_request(
    request: Request, limits: EngineLimits, *, chunked_context: bool, has_tokenizer: bool
) -> None:
    """Raises: ServeError naming everything about `request` that the engine cannot do."""
    reasons = [
        *_length_reasons(request, limits, chunked_context),
        *_token_reasons(request, limits.vocab_size),
        *_sampling_reasons(request.sampling),
        *_other_reasons(request, has_tokenizer),
    ]
    if reasons:
        raise ServeError("request refused: " + "; ".join(reasons))


def _length_reasons(request: Request, limits: EngineLimits, chunked_context: bool) -> Iterator[str]:
    num_prompt = len(request.prompt_ids)
    total = num_prompt + request.max_tokens
    if num_prompt == 0:
        yield "the prompt is empty, expected at least 1 token"
    if request.max_tokens < 1:
        yield f"max_tokens {request.max_tokens}, expected at least 1"
        return
    if num_prompt > limits.max_input_len:
        yield f"prompt of {num_prompt} tokens > max_input_len {limits.max_input_len}"
    if total > limits.max_seq_len:
        yield (
            f"prompt {num_prompt} + max_tokens {request.max_tokens} = {total} tokens "
            f"> max_seq_len {limits.max_seq_len}"
        )
    if not chunked_context and num_prompt > limits.max_num_tokens:
        yield (
            f"prompt of {num_prompt} tokens > max_num_tokens {limits.max_num_tokens} "
            "(a longer prompt needs enable_chunked_context)"
        )
    # The last token's keys and values are never needed.
    num_blocks = -(-(total - 1) // limits.tokens_per_block)
    if num_blocks > limits.num_blocks:
        yield (
            f"{total} tokens need {num_blocks} KV blocks of {limits.tokens_per_block} tokens, "
            f"the pool has {limits.num_blocks}"
        )


def _token_reasons(request: Request, vocab_size: int) -> Iterator[str]:
    ids = (
        ("prompt token", request.prompt_ids),
        ("end id", request.end_ids),
        ("bad_words token", tuple(token for word in request.bad_words for token in word)),
    )
    for what, tokens in ids:
        if tokens and not (0 <= min(tokens) and max(tokens) < vocab_size):
            wrong = next(t for t in tokens if not 0 <= t < vocab_size)
            yield f"{what} {wrong} is outside the vocabulary of {vocab_size}"
    if not all(request.bad_words):
        yield "an empty entry in bad_words"


def _sampling_reasons(params: SamplingParams) -> Iterator[str]:
    def outside(name: str, value: float, low: float, high: float, wanted: str) -> Iterator[str]:
        if not low <= value <= high:
            yield f"{name} {value}, expected {wanted}"

    largest = math.nextafter(math.inf, 0.0)
    yield from outside("temperature", params.temperature, 0.0, largest, "0 or more")
    yield from outside("top_k", params.top_k or 0, 0, largest, "0 or more")
    yield from outside("top_p", params.top_p or 0.0, 0.0, 1.0, "0 to 1")
    yield from outside("min_p", params.min_p, 0.0, 1.0, "0 to 1")
    yield from outside("seed", params.seed or 0, 0, 2**64 - 1, "0 to 2^64 - 1")
    smallest = math.nextafter(0.0, 1.0)
    yield from outside(
        "repetition_penalty", params.repetition_penalty, smallest, largest, "more than 0"
    )
    yield from outside(
        "presence_penalty", params.presence_penalty, -largest, largest, "a finite number"
    )
    yield from outside(
        "frequency_penalty", params.frequency_penalty, -largest, largest, "a finite number"
    )
    yield from outside("min_tokens", params.min_tokens, 0, largest, "0 or more")


def _other_reasons(request: Request, has_tokenizer: bool) -> Iterator[str]:
    if request.sampling.min_tokens > max(request.max_tokens, 0):
        yield f"min_tokens {request.sampling.min_tokens} > max_tokens {request.max_tokens}"
    if not 0.0 <= request.priority <= 1.0:
        yield f"priority {request.priority}, expected 0 to 1"
    if "" in request.stop:
        yield "an empty stop string"
    if request.stop and not has_tokenizer:
        yield "stop strings need a tokenizer, and this executor has none"
