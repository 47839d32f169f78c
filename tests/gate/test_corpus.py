"""Texts: those that come with llmc, and the reader's."""

import hashlib
from pathlib import Path

import pytest

from llmc.errors import RecipeError
from llmc.gate.corpus import DEFAULT_TEXTS, read_texts


def test_prose_and_code_come_with_llmc() -> None:
    prose, code = read_texts(DEFAULT_TEXTS)
    assert (prose.name, code.name) == ("prose", "code")
    # About 1500 tokens of a common tokenizer each.
    assert all(5000 < len(text.text) < 9000 for text in (prose, code))
    assert prose.sha256 == hashlib.sha256(prose.text.encode()).hexdigest()


def test_equal_names_are_told_apart(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "notes.txt").write_text(folder)
    (tmp_path / "other.md").write_text("x")
    names = ("a/notes.txt", "b/notes.txt", "other.md", "other.md")
    texts = read_texts([tmp_path / name for name in names])
    assert [text.name for text in texts] == [
        *(str(tmp_path / "a/notes.txt"), str(tmp_path / "b/notes.txt"), "other")
    ]


def test_unreadable_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"absent\.txt: No such file"):
        read_texts([tmp_path / "absent.txt"])
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(RecipeError, match=r"latin\.txt: not UTF-8 text \(byte 3\)"):
        read_texts([tmp_path / "latin.txt"])
