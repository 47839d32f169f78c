"""tokenizer.json and tokenizer_config.json from the vocabulary a GGUF file carries.

Writes the files of Hugging Face `tokenizers`, as data; nothing here tokenizes. A GGUF names its
pre-tokenizer by a word of llama.cpp instead of describing it, so PRE_TOKENIZERS holds what each
known word stands for.
"""

from typing import Any

from llmc.errors import CheckpointError, UnsupportedError

_BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}

# Source: tokenizer.json of HuggingFaceTB/SmolLM2-135M-Instruct; llama.cpp src/llama-vocab.cpp,
# LLAMA_VOCAB_PRE_TYPE_SMOLLM (digits one by one, then GPT-2's pattern).
PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL],
    },
    "gpt-2": _BYTE_LEVEL,
}

# Source: ggml-org/ggml docs/gguf.md, tokenizer.ggml.token_type.
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5


def build_tokenizer(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the content of tokenizer.json.

    `fields` holds the GGUF's metadata. Control tokens become special added tokens, so that
    "<|im_start|>" in a prompt is one id.

    Raises: UnsupportedError for a tokenizer model or pre-tokenizer not known here, CheckpointError
    for a vocabulary that contradicts itself.
    """
    reasons = unsupported_tokenizer(fields)
    if reasons:
        raise UnsupportedError("the GGUF's tokenizer cannot be written as tokenizer.json", reasons)
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    types: list[int] = fields["tokenizer.ggml.token_type"]
    if len(tokens) != len(types):
        raise CheckpointError(
            f"tokenizer.ggml.token_type: {len(types)} entries, expected {len(tokens)}"
        )
    vocab = {token: number for number, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise CheckpointError(
            f"tokenizer.ggml.tokens: {len(tokens) - len(vocab)} tokens twice, expected none"
        )
    added = [
        _added_token(number, token, special=kind == _CONTROL)
        for number, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZERS[fields["tokenizer.ggml.pre"]],
        "post_processor": _post_processor(fields),
        "decoder": {**_BYTE_LEVEL, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [_merge(merge) for merge in fields["tokenizer.ggml.merges"]],
        },
    }


def unsupported_tokenizer(fields: dict[str, Any]) -> list[str]:
    """Return every reason the vocabulary cannot be converted."""
    reasons = []
    model, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if model != "gpt2":
        reasons.append(f"tokenizer.ggml.model: {model!r}, expected 'gpt2' (byte-level BPE)")
    elif pre not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        reasons.append(f"tokenizer.ggml.pre: {pre!r}, expected one of: {known}")
    for key in ("tokens", "token_type", "merges"):
        if f"tokenizer.ggml.{key}" not in fields:
            reasons.append(f"tokenizer.ggml.{key}: missing")
    return reasons


def build_tokenizer_config(fields: dict[str, Any], model_max_length: int) -> dict[str, Any]:
    """Return the content of tokenizer_config.json, chat template included."""
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    types: list[int] = fields["tokenizer.ggml.token_type"]
    config: dict[str, Any] = {
        "tokenizer_class": "GPT2Tokenizer",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": model_max_length,
        "added_tokens_decoder": {
            str(number): {
                key: value
                for key, value in _added_token(number, token, special=kind == _CONTROL).items()
                if key != "id"
            }
            for number, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind in (_CONTROL, _USER_DEFINED)
        },
    }
    for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        number = fields.get(f"tokenizer.ggml.{key}_token_id")
        if number is not None:
            config[f"{role}_token"] = tokens[number]
    if "tokenizer.chat_template" in fields:
        config["chat_template"] = fields["tokenizer.chat_template"]
    return config


def _merge(merge: str) -> list[str]:
    """Split "a b" at its space; byte-level tokens never hold one, the first may not be empty."""
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise CheckpointError(f"tokenizer.ggml.merges: {merge!r}, expected two tokens and a space")
    return [left, right]


def _added_token(number: int, token: str, *, special: bool) -> dict[str, Any]:
    return {
        "id": number,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }


def _post_processor(fields: dict[str, Any]) -> dict[str, Any] | None:
    """Return a template that puts BOS first where the GGUF asks for one."""
    if not fields.get("tokenizer.ggml.add_bos_token", False):
        return None
    number = fields["tokenizer.ggml.bos_token_id"]
    token = fields["tokenizer.ggml.tokens"][number]
    bos = {"SpecialToken": {"id": token, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            bos,
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": token, "type_id": 1}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }
