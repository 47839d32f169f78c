"""Generated tokens to text as it may be shown: whole characters, up to the first stop string."""

from typing import Protocol


class Decoder(Protocol):
    """Tokens to text, whole characters only (llmc.runtime.tokenizer.IncrementalDecoder)."""

    def push(self, ids: list[int]) -> str: ...
    def flush(self) -> str: ...


class StopMatcher:
    """Finds the first stop string in text that arrives in pieces; how it is cut does not matter."""

    __slots__ = ("_stops", "_held")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Return (text that is safe to show, whether a stop string was found).

        Text is cut before the stop string that ends first; of those that end together the longest
        counts. What may be the beginning of a stop string is held back for the next call.
        """
        text = self._held + text
        self._held = ""
        found = [(start + len(s), start) for s in self._stops if (start := text.find(s)) >= 0]
        if found:
            return text[: min(found)[1]], True
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        if held:
            self._held = text[-held:]
            text = text[:-held]
        return text, False

    def flush(self) -> str:
        """Return what was held back: nothing more will follow."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that begins `stop` without being all of it."""
    tail = text[max(0, len(text) - len(stop) + 1) :]
    start = tail.find(stop[0])
    while start >= 0 and not stop.startswith(tail[start:]):
        start = tail.find(stop[0], start + 1)
    return len(tail) - start if start >= 0 else 0


class TextStream:
    """The text of one request. Without a decoder it is empty.

    `matches` says that the text decides when the request ends, so that it must keep up with the
    tokens.
    """

    __slots__ = ("_decoder", "_matcher", "_pending", "matches")

    def __init__(
        self, decoder: Decoder | None, *, stops: tuple[str, ...], prefix: tuple[int, ...] = ()
    ) -> None:
        """`prefix` are tokens shown before the generated ones; no stop string is sought there."""
        assert decoder is not None or not stops, "stop strings need a decoder"
        self._decoder = decoder
        self._matcher = StopMatcher(stops)
        self.matches = bool(stops)
        self._pending = ""
        if self._decoder is not None and prefix:
            self._pending = self._decoder.push(list(prefix))

    def push(self, token_ids: list[int]) -> tuple[str, bool]:
        """Return (new text, whether a stop string ended it)."""
        if self._decoder is None:
            return "", False
        text, stopped = self._matcher.push(self._decoder.push(token_ids))
        text, self._pending = self._pending + text, ""
        return text, stopped

    def finish(self) -> tuple[str, bool]:
        """Return (the rest of the text, whether a stop string cut it): the output has ended."""
        if self._decoder is None:
            return "", False
        text, stopped = self._matcher.push(self._decoder.flush())
        if not stopped:
            text += self._matcher.flush()
        return self._pending + text, stopped
