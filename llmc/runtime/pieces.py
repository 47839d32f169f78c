"""The bytes each token adds to a text, so that text can be put together token by token."""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

from llmc.errors import UnsupportedError

_PIECEWISE = {"ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"}


class Backend(Protocol):
    """What is needed of tokenizers.Tokenizer."""

    def to_str(self) -> str: ...
    def id_to_token(self, id: int) -> str | None: ...
    def get_vocab_size(self, with_added_tokens: bool = True) -> int: ...
    def get_added_tokens_decoder(self) -> dict[int, Any]: ...
    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...


class Pieces:
    """What each token adds to a text, in bytes: tokenizer.json's decoder, token by token.

    Every decoder supported here is a function of the token alone, but for the first token of a
    text, which may lose a leading space.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._kinds = _decoder_kinds(json.loads(backend.to_str())["decoder"])
        unknown = self._kinds - _PIECEWISE - {"ByteLevel"}
        if unknown or "ByteLevel" in self._kinds and len(self._kinds) > 1:
            raise UnsupportedError(
                f"tokenizer.json: decoder of {', '.join(sorted(self._kinds))}, expected"
                f" ByteLevel or parts of {', '.join(sorted(_PIECEWISE))}"
            )
        added = backend.get_added_tokens_decoder()
        self._special = frozenset(number for number, token in added.items() if token.special)
        self._cache: dict[int, bytes] = {}

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special

    def get(self, token_id: int, *, is_first: bool) -> bytes | None:
        """Return the bytes of a token, None for an id without one."""
        token = self._backend.id_to_token(token_id)
        if token is None:
            return None
        if is_first:
            return self._make(token_id, token, is_first=True)
        if token_id not in self._cache:
            self._cache[token_id] = self._make(token_id, token, is_first=False)
        return self._cache[token_id]

    def _make(self, token_id: int, token: str, *, is_first: bool) -> bytes:
        if "ByteLevel" in self._kinds:
            values = [_BYTE_OF_CHARACTER.get(character) for character in token]
            return token.encode() if None in values else bytes(v for v in values if v is not None)
        byte = _fallback_byte(token) if "ByteFallback" in self._kinds else None
        # A byte below 0x80 is a character, which a decoder may strip at the start of a text.
        if byte is not None and (byte >= 0x80 or not is_first):
            return bytes([byte])
        if is_first:
            return self._decode([token_id]).encode()
        anchor = self._anchor
        return self._decode([anchor, token_id]).removeprefix(self._decode([anchor])).encode()

    def _decode(self, ids: list[int]) -> str:
        text: str = self._backend.decode(ids, skip_special_tokens=False)
        return text

    @cached_property
    def _anchor(self) -> int:
        """An ordinary token to stand before another, so that the other is not the first."""
        for token_id in range(self._backend.get_vocab_size(with_added_tokens=False)):
            token = self._backend.id_to_token(token_id)
            if token and token.isalnum() and token_id not in self._special:
                return token_id
        raise UnsupportedError(
            "tokenizer.json: no token of letters or digits, expected one at least"
        )


def _byte_characters() -> dict[str, int]:
    """Return GPT-2's printable character for each byte. Source: openai/gpt-2 src/encoder.py."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + position): byte for position, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_characters()


def _fallback_byte(token: str) -> int | None:
    """Return the byte of a token like "<0x0A>"."""
    if len(token) != 6 or not token.startswith("<0x") or not token.endswith(">"):
        return None
    try:
        return int(token[3:5], 16)
    except ValueError:
        return None


def _decoder_kinds(decoder: dict[str, Any] | None) -> frozenset[str]:
    if decoder is None:
        return frozenset()
    if decoder["type"] == "Sequence":
        return frozenset().union(*(_decoder_kinds(part) for part in decoder["decoders"]))
    return frozenset([decoder["type"]])
