"""What a request to TensorRT-LLM's Triton model means to the executor, as plain arrays.

The emitted model.py files read and write Triton's tensors and call this module for the rest. A
tensor that asks for something the executor does not do is an error that names it: it is never
ignored.

Shapes: B requests of one message, N tokens; every array still has its leading B.
Source: triton-inference-server/tensorrtllm_backend at c2e65b88, docs/model_config.md and
inflight_batcher_llm/src/utils.cc for meanings and defaults.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.errors import ServeError
from llmc.runtime.request import Request, Response, SamplingParams
from llmc.runtime.session import Session
from llmc.runtime.tokenizer import Tokenizer

Array = npt.NDArray[Any]

NEUTRAL: dict[str, tuple[float, ...]] = {
    "beam_width": (1,),
    "num_return_sequences": (1,),
    "early_stopping": (0,),
    "len_penalty": (0, 1),
    "beam_search_diversity_rate": (0,),
    "runtime_top_p_min": (0,),
    "runtime_top_p_decay": (1,),
    "runtime_top_p_reset_ids": (-1,),
    "return_context_logits": (0,),
    "return_generation_logits": (0,),
    "return_perf_metrics": (0,),
    "embedding_bias": (0,),
    "draft_input_ids": (),
    "draft_logits": (),
    "draft_acceptance_threshold": (),
    "encoder_input_features": (),
    "encoder_output_lengths": (),
    "cross_attention_mask": (),
    "skip_cross_attn_blocks": (),
    "prompt_embedding_table": (),
    "prompt_table_extra_ids": (),
    "prompt_vocab_size": (0,),
    "mrope_rotary_cos_sin": (),
    "mrope_position_deltas": (),
    "lora_task_id": (),
    "lora_weights": (),
    "lora_config": (),
    "context_phase_params": (),
    "retention_token_range_starts": (),
    "retention_token_range_ends": (),
    "retention_token_range_priorities": (),
    "retention_token_range_durations_ms": (),
    "retention_decode_priority": (),
    "retention_decode_duration_ms": (),
    "guided_decoding_guide_type": (),
    "guided_decoding_guide": (),
    "lookahead_window_size": (),
    "lookahead_ngram_size": (),
    "lookahead_verification_set_size": (),
}
"""Input that is not supported → the values that ask for nothing; an empty tensor never asks."""

READ = (
    "input_ids",
    "input_lengths",
    "request_output_len",
    "end_id",
    "stop_words_list",
    "bad_words_list",
    "temperature",
    "runtime_top_k",
    "runtime_top_p",
    "runtime_min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "seed",
    "return_log_probs",
    "exclude_input_in_output",
    "streaming",
)
"""Inputs a request is made of."""

WITHOUT_MEANING = (
    *("pad_id", "decoder_input_ids", "decoder_input_lengths", "stop"),
    *("return_num_input_tokens", "return_num_output_tokens"),
)
"""Inputs that can't change an answer: nothing is padded, no encoder; `stop` is model.py's; the
counts of tokens always come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDefaults:
    """What the emitted configuration says of a request that says nothing itself."""

    exclude_input: bool
    decoupled: bool


def read_request(
    inputs: Mapping[str, Array], row: int, *, defaults: RequestDefaults, session: Session
) -> Request:
    """Return the executor's request of row `row` of one message's tensors.

    Raises: ServeError for a tensor that is missing, malformed, or asks for what is not supported.
    """
    refuse_unsupported(inputs)
    for name in ("input_ids", "request_output_len"):
        if name not in inputs:
            raise ServeError(f"{name}: missing, a request needs it")
    prompt = inputs["input_ids"][row]
    length = _scalar(inputs, "input_lengths", row)
    if length is not None:
        prompt = prompt[: int(length)]
    streaming = bool(_scalar(inputs, "streaming", row))
    if streaming and not defaults.decoupled:
        raise ServeError("streaming: true, but the models were emitted with serve.decoupled false")
    exclude_input = _scalar(inputs, "exclude_input_in_output", row)
    end_ids = _end_ids(inputs, row, session.end_ids)
    stop, stop_ids = _stop_words(inputs, row, session.tokenizer)
    return Request(
        prompt_ids=tuple(prompt.tolist()),
        max_tokens=int(inputs["request_output_len"][row].item()),
        sampling=_sampling(inputs, row),
        end_ids=(*end_ids, *stop_ids),
        stop=stop,
        bad_words=_words(inputs, "bad_words_list", row),
        streaming=streaming,
        return_log_probs=bool(_scalar(inputs, "return_log_probs", row)),
        # A stream never repeats the prompt, whatever the client asks: TensorRT-LLM's rule.
        exclude_input=streaming
        or (defaults.exclude_input if exclude_input is None else bool(exclude_input)),
    )


def refuse_unsupported(inputs: Mapping[str, Array]) -> None:
    """Raise a ServeError naming every input that asks for what the executor does not do."""
    refused = [
        _describe(name, array, NEUTRAL[name])
        for name, array in inputs.items()
        if name in NEUTRAL and not _is_neutral(array, NEUTRAL[name])
    ]
    if inputs.get("decoder_input_ids", np.empty((0, 0))).shape[-1] > 1:
        refused.append("decoder_input_ids")
    if refused:
        raise ServeError(f"not supported by this engine: {', '.join(sorted(refused))}")


def _describe(name: str, array: Array, neutral: tuple[float, ...]) -> str:
    """Return the name of a refused input and, where some value is accepted, what was given."""
    if not neutral or array.size != 1:
        return name
    accepted = " or ".join(str(array.dtype.type(value)) for value in neutral)
    return f"{name} {array.reshape(-1)[0]} (expected {accepted})"


def _is_neutral(array: Array, values: tuple[float, ...]) -> bool:
    if array.size == 0:
        return True
    return bool(values) and bool(np.isin(array.astype(np.float64), values).all())


def _scalar(inputs: Mapping[str, Array], name: str, row: int) -> Any:
    """Return the value of a row of [B] or [B, 1], or None when the tensor is absent."""
    if name not in inputs:
        return None
    value = inputs[name][row]
    if value.size != 1:
        raise ServeError(f"{name}: shape {inputs[name].shape}, expected one value per request")
    return value.item()


def _sampling(inputs: Mapping[str, Array], row: int) -> SamplingParams:
    """An absent tensor leaves the default of SamplingParams, which is TensorRT-LLM's."""
    names = {
        "temperature": "temperature",
        "runtime_top_k": "top_k",
        "runtime_top_p": "top_p",
        "runtime_min_p": "min_p",
        "seed": "seed",
        "repetition_penalty": "repetition_penalty",
        "presence_penalty": "presence_penalty",
        "frequency_penalty": "frequency_penalty",
        "min_tokens": "min_tokens",
    }
    given = {field: _scalar(inputs, name, row) for name, field in names.items() if name in inputs}
    return SamplingParams(**given)


def _end_ids(inputs: Mapping[str, Array], row: int, default: tuple[int, ...]) -> tuple[int, ...]:
    """A negative end_id means to run to max_tokens; so does TensorRT-LLM read it."""
    end_id = _scalar(inputs, "end_id", row)
    if end_id is None:
        return default
    return (int(end_id),) if end_id >= 0 else ()


def _stop_words(
    inputs: Mapping[str, Array], row: int, tokenizer: Tokenizer
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return stop words as text, and those that are one special token (which is no text) as ids."""
    texts: list[str] = []
    ids: list[int] = []
    for word in _words(inputs, "stop_words_list", row):
        whole = tokenizer.decode(list(word), skip_special_tokens=False)
        visible = tokenizer.decode(list(word), skip_special_tokens=True)
        if visible == whole:
            texts.append(whole)
        elif len(word) == 1:
            ids.append(word[0])
        else:
            raise ServeError(
                f"stop word {whole!r}: mixes special tokens and text; expected one or the other"
            )
    return tuple(texts), tuple(ids)


def _words(inputs: Mapping[str, Array], name: str, row: int) -> tuple[tuple[int, ...], ...]:
    """Read TensorRT-LLM's word list [2, N]: the tokens of all words, and where each word ends."""
    if name not in inputs:
        return ()
    words = inputs[name][row]
    if words.ndim != 2 or words.shape[0] != 2:
        raise ServeError(f"{name}: shape {inputs[name].shape}, expected [batch, 2, length]")
    tokens = words[0].tolist()
    ends = [end for end in words[1].tolist() if end != -1]
    if any(not 0 < end <= len(tokens) for end in ends) or ends != sorted(ends):
        raise ServeError(f"{name}: ends {ends} are not ascending within {len(tokens)} tokens")
    return tuple(tuple(tokens[start:end]) for start, end in pairwise([0, *ends]) if start < end)


def make_word_lists(rows: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.int32]:
    """Return TensorRT-LLM's word lists [B, 2, N] of the tokenized words of each request.

    Row 0 has the tokens of all words, padded with 0; row 1 where each word ends, padded with -1.
    """
    flat = [[token for word in words for token in word] for words in rows]
    length = max([1, *(len(tokens) for tokens in flat), *(len(words) for words in rows)])
    lists = np.zeros((len(rows), 2, length), np.int32)
    lists[:, 1] = -1
    for row, words in enumerate(rows):
        lists[row, 0, : len(flat[row])] = flat[row]
        lists[row, 1, : len(words)] = np.cumsum([len(word) for word in words], dtype=np.int32)
    return lists


def response_tensors(response: Response, *, row: int, num_rows: int) -> dict[str, Array]:
    """Return the output tensors of one response, [1, …] each; there is always exactly one beam.

    `finish_reason` comes with the last response only, `batch_index` only where a message has
    several rows, as in TensorRT-LLM's own model.
    """
    tokens = np.array(response.token_ids, np.int32)
    text = np.empty(1, np.object_)
    text[0] = response.text.encode()
    tensors: dict[str, Array] = {
        "output_ids": tokens[None, None],
        "sequence_length": np.array([[tokens.size]], np.int32),
        "OUTPUT_TEXT": text[None],
        "num_input_tokens": np.array([[response.num_input_tokens]], np.int32),
        "num_output_tokens": np.array([[response.num_output_tokens]], np.int32),
    }
    if response.log_probs is not None:
        tensors["output_log_probs"] = np.array(response.log_probs, np.float32)[None, None]
        tensors["cum_log_probs"] = np.array([[response.cum_log_prob or 0.0]], np.float32)
    if response.finish_reason is not None:
        tensors["finish_reason"] = np.array([[response.finish_reason.encode()]], np.object_)
    if num_rows > 1:
        tensors["batch_index"] = np.array([[row]], np.int32)
    return tensors
