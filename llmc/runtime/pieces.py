"""The bytes each token adds to a text, so that text can be put together token by token."""

import json
from collections.abc import Sequence
from typing import Any, Protocol

from llmc.errors import UnsupportedError

_PIECEWISE = ("ByteFallback", "Fuse", "Metaspace", "Replace", "Strip")


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
        """Raises: UnsupportedError for a decoder that looks at several tokens at once."""
        self._backend = backend
        parts = _decoder_parts(json.loads(backend.to_str())["decoder"])
        _require_piecewise(parts)
        kinds = {part["type"] for part in parts}
        self._is_byte_level = "ByteLevel" in kinds
        self._has_fallback = "ByteFallback" in kinds
        added = backend.get_added_tokens_decoder()
        self._added = frozenset(added)
        self._special = frozenset(number for number, token in added.items() if token.special)
        self._cache: dict[int, bytes] = {}
        self._anchor = None if self._is_byte_level else self._find_anchor()

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
        if self._is_byte_level:
            return self._bytes_of_characters(token_id, token)
        byte = _fallback_byte(token) if self._has_fallback else None
        # A byte below 0x80 is a character, which a decoder may strip at the start of a text.
        if byte is not None and (byte >= 0x80 or not is_first):
            return bytes([byte])
        if is_first:
            return self._decode([token_id]).encode()
        anchor = self._anchor
        assert anchor is not None
        return self._decode([anchor, token_id]).removeprefix(self._decode([anchor])).encode()

    def _bytes_of_characters(self, token_id: int, token: str) -> bytes:
        values = [_BYTE_OF_CHARACTER.get(character) for character in token]
        if None in values:
            return token.encode()
        spelled = bytes(value for value in values if value is not None)
        if token_id in self._added:
            # Added as text: "café" is no spelling of bytes, but é may be taken for one.
            try:
                spelled.decode()
            except UnicodeDecodeError:
                return token.encode()
        return spelled

    def _decode(self, ids: list[int]) -> str:
        text: str = self._backend.decode(ids, skip_special_tokens=False)
        return text

    def _find_anchor(self) -> int:
        """A token with a text to stand before another, so that the other is not the first."""
        for token_id in range(self._backend.get_vocab_size()):
            if token_id in self._special or self._backend.id_to_token(token_id) is None:
                continue
            text = self._decode([token_id])
            if text.strip() and "\ufffd" not in text:
                return token_id
        raise UnsupportedError("tokenizer.json: no token with a text, expected one at least")


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


def _decoder_parts(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [leaf for part in decoder["decoders"] for leaf in _decoder_parts(part)]
    return [decoder]


def _require_piecewise(parts: list[dict[str, Any]]) -> None:
    """Raise UnsupportedError unless the parts, in order, work on a token at a time.

    After Fuse there is but one text: only its beginning may still change.
    """
    kinds = [part["type"] for part in parts]
    first_fuse = kinds.index("Fuse") if "Fuse" in kinds else len(kinds)
    whole = [part for part in parts[first_fuse:] if part["type"] != "Fuse"]
    if kinds == ["ByteLevel"] or (
        set(kinds) <= set(_PIECEWISE)
        and all(part["type"] == "Strip" and part["stop"] == 0 for part in whole)
    ):
        return
    raise UnsupportedError(
        f"tokenizer.json: decoder of {', '.join(kinds)}, expected ByteLevel or, before a Fuse and"
        f" a Strip of the beginning, parts of {', '.join(_PIECEWISE)}"
    )
