"""What a client asks of the executor and gets back; knows nothing of blocks, batches or threads."""

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["end_id", "stop", "length", "cancelled"]

DEFAULT_SEED = 0
"""Seed of a request that names none, so that it is reproducible too.

Source: NVIDIA/TensorRT-LLM cpp/tensorrt_llm/layers/defaultDecodingParams.h, `getSeed`.
"""
DEFAULT_PRIORITY = 0.5
"""Source: NVIDIA/TensorRT-LLM cpp/include/tensorrt_llm/executor, `Request::kDefaultPriority`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen.

    Greedy when `temperature` is 0, when `top_k` is 1, and (as in TensorRT-LLM) when nothing asks
    for sampling: `top_k` None with neither `top_p` nor `min_p`. An explicit `top_k` of 0 takes the
    whole vocabulary; `top_p` None or 0 is off, `min_p` 0 is off. Penalties count the tokens of
    prompt and output alike.

    Source: defaults of NVIDIA/TensorRT-LLM cpp/tensorrt_llm/layers/defaultDecodingParams.h; a top_p
    of 0 as in layers/topKSamplingLayer.cu, `setupTopKRuntimeArgs`.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, whatever the seed."""
        if self.temperature == 0.0 or self.top_k == 1:
            return True
        return self.top_k is None and not self.top_p and self.min_p == 0.0

    @property
    def penalizes(self) -> bool:
        """Whether tokens seen before change the logits."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to continue by at most `max_tokens` tokens.

    `end_ids` end the output and are not part of it. `stop` are strings matched on the generated
    text, which is cut before them. `bad_words` are token sequences that must not appear. `priority`
    is 0..1, higher first. With `streaming` there is a response per token, else one at the end.
    `exclude_input` False puts the prompt in front of the first response's tokens and text.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    end_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    streaming: bool = False
    return_log_probs: bool = False
    priority: float = DEFAULT_PRIORITY
    exclude_input: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What is new since the request's previous response.

    `text` never ends in half a character and never contains a stop string; what may be the
    beginning of one is held back, so `text` may lag behind `token_ids`. `log_probs` has one entry
    per output token of this response (None unless asked for) and `cum_log_prob` sums all so far.
    `num_output_tokens` counts all output tokens so far. The last response has a `finish_reason` or
    an `error`, never both.
    """

    request_id: int
    token_ids: tuple[int, ...] = ()
    text: str = ""
    log_probs: tuple[float, ...] | None = None
    cum_log_prob: float | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None
    is_lost: bool = False
    """The error is the engine's, which was lost: the same request may be answered later."""
    num_input_tokens: int = 0
    num_output_tokens: int = 0

    @property
    def is_final(self) -> bool:
        return self.finish_reason is not None or self.error is not None
