import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmc.runtime.text import StopMatcher, TextStream


def run(stops: tuple[str, ...], pieces: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    shown = ""
    for piece in pieces:
        text, stopped = matcher.push(piece)
        shown += text
        if stopped:
            return shown, True
    return shown + matcher.flush(), False


def test_text_is_cut_before_the_stop_string() -> None:
    assert run(("END",), ["abc E", "N", "D xyz"]) == ("abc ", True)
    assert run(("END",), ["abc E", "N"]) == ("abc EN", False)
    assert run(("END",), ["END"]) == ("", True)
    assert run((), ["abc"]) == ("abc", False)


def test_what_may_begin_a_stop_string_is_held_back_and_no_more() -> None:
    matcher = StopMatcher(("\n\nUser:", "</s>"))
    assert matcher.push("Hi\n") == ("Hi", False)
    assert matcher.push("\n") == ("", False)
    assert matcher.push("\n") == ("\n", False), "the last two newlines may still begin it"
    assert matcher.push("Us<") == ("\n\nUs", False)
    assert matcher.push("/p>") == ("</p>", False)
    assert matcher.flush() == ""


def test_the_stop_string_that_ends_first_counts() -> None:
    assert run(("bcd", "abcdef"), ["xabcdef"]) == ("xa", True)
    assert run(("b", "ab"), ["xab"]) == ("x", True)


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.text("ab", max_size=5), max_size=8),
)
@settings(deadline=None)
def test_pieces_do_not_matter(stops: list[str], pieces: list[str]) -> None:
    whole = "".join(pieces)
    by_character = run(tuple(stops), list(whole))
    assert run(tuple(stops), pieces) == by_character
    assert run(tuple(stops), [whole]) == by_character
    shown, stopped = by_character
    assert whole.startswith(shown)
    assert not any(stop in shown for stop in stops)
    assert stopped == any(stop in whole for stop in stops)


class Bytes:
    """Tokens are bytes; a character is shown when complete, a cut one at the end as U+FFFD."""

    def __init__(self) -> None:
        self._held = b""

    def push(self, ids: list[int]) -> str:
        self._held += bytes(ids)
        for end in range(len(self._held), -1, -1):
            try:
                text = self._held[:end].decode()
            except UnicodeDecodeError:
                continue
            self._held = self._held[end:]
            return text
        raise AssertionError

    def flush(self) -> str:
        text, self._held = self._held.decode(errors="replace"), b""
        return text


def test_stream_shows_whole_characters_and_stops_on_them() -> None:
    stream = TextStream(Bytes(), stops=("é!",))
    shown = ""
    for byte in "caf\u00e9s caf\u00e9! no".encode():
        text, stopped = stream.push([byte])
        assert "\ufffd" not in text
        shown += text
        if stopped:
            break
    assert (shown, stopped) == ("cafés caf", True)


def test_finish_returns_what_was_held_back() -> None:
    stream = TextStream(Bytes(), stops=("END",))
    assert stream.push(list(b"the EN")) == ("the ", False)
    assert stream.finish() == ("EN", False)


def test_the_prefix_is_shown_first_and_not_searched() -> None:
    stream = TextStream(Bytes(), stops=("END",), prefix=tuple(b"END of "))
    assert stream.push(list(b"line")) == ("END of line", False)
    assert TextStream(Bytes(), stops=(), prefix=tuple(b"only")).finish() == ("only", False)


def test_without_decoder_there_is_no_text_and_stop_strings_are_an_error() -> None:
    stream = TextStream(None, stops=())
    assert stream.push([1, 2]) == ("", False) and stream.finish() == ("", False)
    with pytest.raises(AssertionError, match="stop strings"):
        TextStream(None, stops=("x",))
