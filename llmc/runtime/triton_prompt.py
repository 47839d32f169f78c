"""Prompts and words of a request to TensorRT-LLM's preprocessing model, as tokens.

Source of tensor names and meanings: triton-inference-server/tensorrtllm_backend at c2e65b88,
all_models/inflight_batcher_llm/preprocessing.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.errors import ServeError
from llmc.runtime.tokenizer import Tokenizer
from llmc.runtime.triton_request import make_word_lists

Array = npt.NDArray[Any]

REFUSED = (
    "DECODER_QUERY",
    "IMAGE_BYTES",
    "IMAGE_URL",
    "IMAGES",
    "VIDEO_BYTES",
    "EMBEDDING_BIAS_WORDS",
    "PROMPT_TABLE_EXTRA_ID",
)
"""Inputs of models that are no plain decoders, and of a logits bias the executor does not do."""


def read_prompts(
    inputs: Mapping[str, Array], tokenizer: Tokenizer, *, add_special_tokens: bool
) -> dict[str, Array]:
    """Return preprocessing's output tensors for the B prompts of one message.

    Without END_ID from the client, OUT_END_ID is the first of the model's own end tokens and the
    others are stop words: TensorRT-LLM's executor knows no end by itself, and only one end token.
    OUT_PAD_ID is made only when the client gave one. Prompts of one message are padded to the
    longest with 0.

    Raises: ServeError for a refused input and for chat messages that are none.
    """
    refused = [name for name in REFUSED if name in inputs and any(_flat(inputs[name]))]
    if refused:
        raise ServeError(f"not supported by this engine: {', '.join(refused)}")
    queries = [str(row.reshape(-1)[0], "utf-8") for row in inputs["QUERY"]]
    chat = inputs.get("APPLY_CHAT_TEMPLATE", np.zeros((len(queries), 1), np.bool_))
    prompts = [
        _encode(query, tokenizer, chat=bool(flag.any()), add_special_tokens=add_special_tokens)
        for query, flag in zip(queries, chat, strict=True)
    ]
    lengths = np.array([[len(prompt)] for prompt in prompts], np.int32)
    input_ids = np.zeros((len(prompts), int(lengths.max())), np.int32)
    for row, prompt in enumerate(prompts):
        input_ids[row, : len(prompt)] = prompt
    ends = () if "END_ID" in inputs else tokenizer.end_ids
    outputs: dict[str, Array] = {
        "INPUT_ID": input_ids,
        "REQUEST_INPUT_LEN": lengths,
        "DECODER_INPUT_ID": np.zeros_like(lengths),
        "REQUEST_DECODER_INPUT_LEN": np.ones_like(lengths),
        "REQUEST_OUTPUT_LEN": inputs["REQUEST_OUTPUT_LEN"],
        "STOP_WORDS_IDS": _word_lists(inputs, "STOP_WORDS_DICT", len(prompts), tokenizer, ends[1:]),
        "BAD_WORDS_IDS": _word_lists(inputs, "BAD_WORDS_DICT", len(prompts), tokenizer),
        "EMBEDDING_BIAS": np.empty((len(prompts), 0), np.float32),
    }
    if ends:
        outputs["OUT_END_ID"] = np.full_like(lengths, ends[0])
    for name in ("END_ID", "PAD_ID"):
        if name in inputs:
            outputs[f"OUT_{name}"] = inputs[name]
    return outputs


def _encode(query: str, tokenizer: Tokenizer, *, chat: bool, add_special_tokens: bool) -> list[int]:
    """A rendered chat template has its special tokens already."""
    if chat:
        text = tokenizer.apply_chat_template(read_messages(query))
        return tokenizer.encode(text, add_special_tokens=False)
    return tokenizer.encode(query, add_special_tokens=add_special_tokens)


def read_messages(text: str) -> list[dict[str, str]]:
    """Read a chat: a JSON list of {"role": …, "content": …} objects. Raises: ServeError."""
    try:
        messages = json.loads(text)
    except json.JSONDecodeError as error:
        raise ServeError(f"chat: {error}; expected a JSON list of messages") from error
    if not isinstance(messages, list) or not messages:
        raise ServeError("chat: expected a JSON list of at least one message")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise ServeError(f"chat: message {index} needs a text for role and for content")
    return messages


def _word_lists(
    inputs: Mapping[str, Array],
    name: str,
    num_rows: int,
    tokenizer: Tokenizer,
    tokens: tuple[int, ...] = (),
) -> npt.NDArray[np.int32]:
    """Tokenize the words of every row; an empty word, which clients send to fill up, is none.

    `tokens` are words of their own, of every row.
    """
    rows: list[list[list[int]]] = [[] for _ in range(num_rows)]
    if name in inputs:
        for row, words in enumerate(inputs[name]):
            texts = [str(word, "utf-8") for word in words.reshape(-1)]
            rows[row] = [tokenizer.encode(text, add_special_tokens=False) for text in texts if text]
    return make_word_lists([[*words, *([token] for token in tokens)] for words in rows])


def _flat(array: Array) -> list[Any]:
    return list(array.reshape(-1).tolist())
