"""Streamed text is that of all tokens at once, whatever the tokenizer and however they come."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from llmc.runtime.tokenizer import Tokenizer
from llmc.runtime.triton_text import StreamedTexts
from tests.runtime.tiny_tokenizers import MAKERS, save

KEY = (("batch_index", 0),)


class Decoder:
    """Decodes as postprocessing does, and counts what it is given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.longest = 0

    def __call__(self, tokens: Sequence[Sequence[int]]) -> list[str]:
        self.longest = max(self.longest, *map(len, tokens))
        return [self.tokenizer.decode(list(row)) for row in tokens]


@pytest.mark.parametrize("kind", MAKERS)
def test_pieces_add_up_to_the_whole(kind: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(save(MAKERS[kind](), tmp_path))
    text = "the quick naïve 日本語 👩‍👩‍👧 café  fox\n\njumps" * 3
    tokens = tokenizer.encode(text, add_special_tokens=False)
    whole = tokenizer.decode(tokens)
    for size in (1, 2, 5):
        decoder = Decoder(tokenizer)
        texts = StreamedTexts(decoder)
        pieces = [texts.push(KEY, tokens[i : i + size]) for i in range(0, len(tokens), size)]
        assert "".join(pieces) + texts.flush().get(KEY, "") == whole
        assert decoder.longest <= 60 < len(tokens), "a window, not all of them again"


def test_a_character_waits_for_its_last_token(tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(save(MAKERS["byte_level"](), tmp_path))
    bytes_of = [tokenizer.encode(text, add_special_tokens=False) for text in ("a", "ß", "🦀")]
    texts = StreamedTexts(Decoder(tokenizer))
    assert [texts.push(KEY, [token]) for token in bytes_of[0]] == ["a"]
    assert [texts.push(KEY, [token]) for token in bytes_of[1]] == ["", "ß"]
    assert texts.push(KEY, bytes_of[2][:1]) == ""
    assert texts.flush() == {KEY: "\N{REPLACEMENT CHARACTER}"}


def test_streams_of_one_request_are_told_apart(tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(save(MAKERS["byte_level"](), tmp_path))
    first, second = (tokenizer.encode(text, add_special_tokens=False) for text in ("ß", "ü"))
    texts = StreamedTexts(Decoder(tokenizer))
    other = (("batch_index", 1),)
    assert [texts.push(KEY, first[:1]), texts.push(other, second[:1])] == ["", ""]
    assert [texts.push(KEY, first[1:]), texts.push(other, second[1:])] == ["ß", "ü"]
    assert texts.flush() == {}
