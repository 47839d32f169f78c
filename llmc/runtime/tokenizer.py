"""Text to tokens and back, and the chat template: the Hugging Face files beside an engine.

Owns tokenizer.json, tokenizer_config.json and the template; `IncrementalDecoder` turns a stream of
tokens into a stream of whole characters. No clean-up of spaces is applied to decoded text.
"""

import codecs
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from llmc.errors import CheckpointError
from llmc.runtime.chat_template import ChatTemplate, choose_template, read_templates
from llmc.runtime.pieces import Pieces

_SPECIAL_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


class Tokenizer:
    """The tokenizer of one model; safe to share between threads once opened."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        config: dict[str, Any],
        *,
        templates: Mapping[str, ChatTemplate],
        end_ids: tuple[int, ...] | None,
    ) -> None:
        """`config` is the content of tokenizer_config.json; `end_ids` None means the EOS token."""
        self._backend = backend
        self._templates = templates
        self.special_tokens = _special_tokens(config)
        """Role ("bos_token") → text, as chat templates see them."""
        self.bos_id = self._special_id("bos")
        self.eos_id = self._special_id("eos")
        eos = () if self.eos_id is None else (self.eos_id,)
        self.end_ids = eos if end_ids is None else end_ids
        self.pieces = Pieces(backend)

    @classmethod
    def open(cls, directory: Path) -> "Tokenizer":
        """Read the tokenizer files of `directory`; generation_config.json may give end ids.

        Raises: CheckpointError for a missing or broken file, UnsupportedError for a decoder that
        cannot be streamed.
        """
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(
                f"{path}: missing", hint="save the model with a fast tokenizer (tokenizer.json)"
            )
        try:
            backend = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:  # noqa: B902 - the bindings raise Exception itself, nothing narrower
            raise CheckpointError(f"{path}: {error}, expected a tokenizer.json") from error
        config = _read_json(directory / "tokenizer_config.json")
        for role, token in _read_json(directory / "special_tokens_map.json").items():
            config.setdefault(role, token)
        # A server pads nothing and must see every token of a prompt to refuse one that is too long.
        backend.no_truncation()
        backend.no_padding()
        return cls(
            backend,
            config,
            templates=read_templates(directory, config),
            end_ids=_read_end_ids(directory / "generation_config.json"),
        )

    @property
    def vocab_size(self) -> int:
        """Tokens with a text, added ones included; a model's logits may have more columns."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`, with what tokenizer.json's post-processor puts around it.

        A BOS that `text` spells out itself is not put there a second time. `add_bos_token` of
        tokenizer_config.json does not count, as in transformers 5.
        """
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        if self.bos_id is None or ids[:2] != [self.bos_id] * 2:
            return ids
        spelled = text.startswith(self.special_tokens["bos_token"])
        return ids[1:] if add_special_tokens and spelled else ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; ids without a token are left out.

        Only what is wrong becomes U+FFFD: `tokenizers` gives it for a whole run of byte tokens with
        one wrong among them, and for a byte-level tokenizer's added token "café".
        """
        decoder = IncrementalDecoder(self, skip_special_tokens=skip_special_tokens)
        return decoder.push(ids) + decoder.flush()

    def apply_chat_template(
        self, messages: list[dict[str, Any]], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """Render a conversation; encode the result with add_special_tokens=False.

        `variables` are further names the template may read (tools, documents, …).
        Raises: CheckpointError when the model has no template, ServeError when that refuses.
        """
        template = choose_template(self._templates, with_tools=variables.get("tools") is not None)
        return template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            **self.special_tokens,
            **variables,
        )

    def _special_id(self, role: str) -> int | None:
        token = self.special_tokens.get(f"{role}_token")
        return None if token is None else self._backend.token_to_id(token)


class IncrementalDecoder:
    """Turns the tokens of one sequence into text as they come, each token in constant time.

    What `push` returned so far plus `flush` is `Tokenizer.decode` of all tokens pushed. A character
    split over tokens comes out whole, with the token that completes it.
    """

    __slots__ = ("_pieces", "_skip_special", "_utf8", "_is_first")

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._pieces = tokenizer.pieces
        self._skip_special = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_first = True

    def push(self, ids: Sequence[int]) -> str:
        """Return the text these tokens complete."""
        parts = []
        for token_id in ids:
            if self._skip_special and self._pieces.is_special(token_id):
                continue
            piece = self._pieces.get(token_id, is_first=self._is_first)
            if piece is not None:
                parts.append(piece)
                self._is_first = False
        return self._utf8.decode(b"".join(parts))

    def flush(self) -> str:
        """Return what is left at the end: U+FFFD for a character that was never completed."""
        return self._utf8.decode(b"", final=True)


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    found = {}
    for role in _SPECIAL_ROLES:
        token = config.get(f"{role}_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            found[f"{role}_token"] = text
    return found


def _read_json(path: Path) -> dict[str, Any]:
    """Return the object in `path`, empty when there is no such file."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}, expected JSON") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: a {type(data).__name__}, expected an object")
    return data


def _read_end_ids(path: Path) -> tuple[int, ...] | None:
    eos = _read_json(path).get("eos_token_id")
    if eos is None:
        return None
    ids = eos if isinstance(eos, list) else [eos]
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in ids):
        raise CheckpointError(f"{path}: eos_token_id: {eos!r}, expected a number or a list of them")
    return tuple(ids)
