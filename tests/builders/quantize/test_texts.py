"""Calibration files: what a document is, how it is cut, and what a bad one is called."""

import json
from pathlib import Path

import pytest

from llmc.builders.quantize.texts import DEFAULT_TEXT, digest_of, load_calibration, read_documents
from llmc.errors import CheckpointError, LlmcError, RecipeError
from tests.builders.tiny_hf import write_model


def words(*numbers: int) -> str:
    return " ".join(f"w{number}" for number in numbers)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def load(
    path: Path | None, model_dir: Path, samples: int = 100, max_tokens: int = 10
) -> list[list[int]]:
    data = load_calibration(path, model_dir, samples=samples, max_tokens=max_tokens, vocab_size=64)
    return [sequence.tolist() for sequence in data.sequences]


def test_text_is_cut_and_sampled_evenly(model_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(words(*range(45)))
    # The rest of five says too little.
    assert load(path, model_dir) == [list(range(i, i + 10)) for i in (0, 10, 20, 30)]
    assert load(path, model_dir, samples=2) == [list(range(10)), list(range(20, 30))]


def test_records_are_documents_of_their_own(model_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    messages = [
        {"role": "user", "content": words(*range(6))},
        {"role": "x", "content": words(7, 8)},
    ]
    records = [
        {"text": words(*range(12))},
        {"prompt": words(*range(20, 29))},
        {"messages": messages},
    ]
    path.write_text("\n\n".join(json.dumps(record) for record in records))
    wanted = [list(range(10)), list(range(20, 29)), [*range(6), 7, 8]]
    assert load(path, model_dir) == wanted


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", r"a.jsonl:2: not JSON"),
        ('{"body": "x"}', r'a.jsonl:2: expected an object with "text"'),
        ('["text"]', r'a.jsonl:2: expected an object with "text"'),
        ('{"messages": [{"role": "user"}]}', r"a.jsonl:2: expected"),
    ],
)
def test_bad_record_is_named_by_line(line: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x"}\n' + line)
    with pytest.raises(RecipeError, match=reason):
        list(read_documents(path))


@pytest.mark.parametrize(
    ("content", "error", "reason"),
    [
        (b"\xff\xfe", RecipeError, "not UTF-8"),
        (b"w1 w2", RecipeError, "no text of 8 tokens"),
    ],
)
def test_useless_text_is_refused(
    content: bytes, error: type[LlmcError], reason: str, model_dir: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(error, match=reason):
        load(path, model_dir)


def test_tokenizer_of_another_model_is_refused(model_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(words(*range(20)))
    with pytest.raises(CheckpointError, match="token id 19, expected less than vocab_size 8"):
        load_calibration(path, model_dir, samples=1, max_tokens=10, vocab_size=8)
    (model_dir / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="no tokenizer.json"):
        load(path, model_dir)


def test_default_text_has_prose_code_and_dialogue() -> None:
    text = DEFAULT_TEXT.read_text(encoding="utf-8")
    assert "harbour master" in text and "Assistant:" in text and "```python" in text
    assert 30_000 < len(text) < 60_000
    assert digest_of(None) == digest_of(DEFAULT_TEXT)
