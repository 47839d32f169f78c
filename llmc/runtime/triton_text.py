"""Exact text of streamed tokens, from a decoder that knows nothing but whole lists of tokens.

For tensorrt_llm_bls when the model below sends tokens alone, as TensorRT-LLM's does: decoded one
by one, they lose spaces, and characters of several tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

StreamKey = tuple[tuple[str, int], ...]
"""What tells the streams of one request apart: output → its value."""

Decode = Callable[[Sequence[Sequence[int]]], list[str]]
"""Lists of tokens → the text of each."""

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""What a decoder ends with when the last token is only part of a character."""


@dataclass(slots=True)
class _Stream:
    """The tokens so far; those from `start` on give the text, of which that to `read` is sent."""

    tokens: list[int] = field(default_factory=list)
    start: int = 0
    read: int = 0


class StreamedTexts:
    """The streams of one request.

    What `push` returned of a stream, plus `flush`, is the text of all its tokens. Two texts are
    decoded for each push, of the last pushes only, so that a stream of any length costs the same.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._streams: dict[StreamKey, _Stream] = {}

    def push(self, key: StreamKey, tokens: Sequence[int]) -> str:
        """Return the text these tokens complete."""
        stream = self._streams.setdefault(key, _Stream())
        stream.tokens += tokens
        new = self._unsent(stream)
        if new.endswith(INCOMPLETE):
            return ""
        stream.start, stream.read = stream.read, len(stream.tokens)
        return new

    def flush(self) -> dict[StreamKey, str]:
        """Return, by stream, what never became whole characters; most have nothing left."""
        left = {key: self._unsent(stream) for key, stream in self._streams.items()}
        return {key: text for key, text in left.items() if text}

    def _unsent(self, stream: _Stream) -> str:
        if stream.read == len(stream.tokens):
            return ""
        sent, whole = self._decode(
            [stream.tokens[stream.start : stream.read], stream.tokens[stream.start :]]
        )
        return whole[len(sent) :]
