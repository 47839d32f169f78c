"""Text of any tokens, streamed and whole, against transformers, for every kind of tokenizer."""

import functools
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from llmc.runtime.tokenizer import IncrementalDecoder, Tokenizer
from tests.runtime.tiny_tokenizers import MAKERS, save

KINDS = sorted(MAKERS)
SNIPPETS = [
    *("the", " fox", "  ", " ", "\n\n\t", "naïve", "é", "café", "word", "words", " spaced out "),
    *(
        "日本語",
        "🙂",
        "👩‍👩‍👧",
        "👩🏽‍🚀",
        "🇩🇪",
        "\u200d",
        "e\u0301",
        "€",
        "▁",
        "Ġ",
        "\ufb01",
        "\x00",
        "\u2028",
    ),
    *("<s>", "</s>", "<unk>", "<|im_start|>", "<tool>", "<|x▁y|>", "<｜tool▁call｜>"),
]
TEXTS = st.lists(st.sampled_from(SNIPPETS) | st.text(max_size=4), max_size=12).map("".join)


@functools.cache
def pair(kind: str) -> tuple[Tokenizer, Any]:
    """Return tokenizer `kind` as it is opened here, and by transformers."""
    with tempfile.TemporaryDirectory() as folder:
        directory = save(MAKERS[kind](), Path(folder))
        return Tokenizer.open(directory), AutoTokenizer.from_pretrained(directory)


def stream(tokenizer: Tokenizer, ids: list[int], cuts: list[int], skip: bool) -> list[str]:
    decoder = IncrementalDecoder(tokenizer, skip_special_tokens=skip)
    edges = [0, *sorted(cuts), len(ids)]
    parts = [decoder.push(ids[a:b]) for a, b in zip(edges, edges[1:], strict=False)]
    return [*parts, decoder.flush()]


def is_defined(kind: str, text: str) -> bool:
    """Say whether `text` of transformers is what the tokens say.

    It gives U+FFFD for whole runs of fallback bytes when one is wrong, and for a byte-level
    tokenizer's added tokens with characters that GPT-2 has for bytes.
    """
    return "\ufffd" not in text or kind == "byte_level"


@settings(max_examples=400, deadline=None)
@given(kind=st.sampled_from(KINDS), data=st.data(), skip=st.booleans())
def test_any_tokens(kind: str, data: st.DataObject, skip: bool) -> None:
    ours, theirs = pair(kind)
    ids = data.draw(st.lists(st.integers(0, ours.vocab_size - 1), max_size=30))
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=5))
    whole = ours.decode(ids, skip_special_tokens=skip)
    assert "".join(stream(ours, ids, cuts, skip)) == whole
    reference = theirs.decode(ids, skip_special_tokens=skip)
    if is_defined(kind, reference):
        assert whole == reference


@settings(max_examples=400, deadline=None)
@given(kind=st.sampled_from(KINDS), text=TEXTS, special=st.booleans(), skip=st.booleans())
def test_any_text(kind: str, text: str, special: bool, skip: bool) -> None:
    ours, theirs = pair(kind)
    assume("\ufffd" not in text)
    ids = ours.encode(text, add_special_tokens=special)
    if not (special and text.startswith("<s>")):  # a BOS is not doubled, as it is there
        assert ids == theirs.encode(text, add_special_tokens=special)
    parts = stream(ours, ids, list(range(len(ids))), skip)
    whole = ours.decode(ids, skip_special_tokens=skip)
    assert "".join(parts) == whole
    assert "\ufffd" not in whole, "no character of a text is split for good"
    reference = theirs.decode(ids, skip_special_tokens=skip)
    if is_defined(kind, reference):
        assert whole == reference
