"""Tokenizer against the tokenizers library and transformers; streams against whole decodes."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from llmc.errors import CheckpointError, UnsupportedError
from llmc.runtime.tokenizer import IncrementalDecoder, Tokenizer
from tests.runtime.tiny_tokenizers import MAKERS, byte_fallback, byte_level, save

TEXTS = [
    "",
    " ",
    "the fox",
    "  two leading spaces",
    "naïve 日本語 🙂👩‍👩‍👧 €",
    "a\n\n\tb  c ",
    "<|im_start|>user\nhi</s>",
    "1234",
]


@pytest.fixture(scope="module", params=MAKERS)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = save(MAKERS[request.param](), tmp_path_factory.mktemp(request.param))
    return Tokenizer.open(directory)


@pytest.fixture(scope="module")
def all_opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    return {
        name: Tokenizer.open(save(make(), tmp_path_factory.mktemp(name)))
        for name, make in MAKERS.items()
    }


def stream(tokenizer: Tokenizer, ids: list[int], *, skip: bool = True) -> list[str]:
    decoder = IncrementalDecoder(tokenizer, skip_special_tokens=skip)
    return [*(decoder.push([token]) for token in ids), decoder.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back_whole_and_streamed(opened: Tokenizer, text: str) -> None:
    ids = opened.encode(text)
    expected = opened._backend.decode(ids, skip_special_tokens=True)
    assert opened.decode(ids) == expected
    assert "".join(stream(opened, ids)) == expected
    assert not any("\ufffd" in part for part in stream(opened, ids))


def test_space_after_a_skipped_special_token_stays(all_opened: dict[str, Tokenizer]) -> None:
    for tokenizer in all_opened.values():
        ids = tokenizer.encode("the", add_special_tokens=False)
        ids += [tokenizer.bos_id or 0, *tokenizer.encode("fox the", add_special_tokens=False)]
        expected = tokenizer._backend.decode(ids, skip_special_tokens=True)
        assert "".join(stream(tokenizer, ids)) == expected


def test_broken_bytes_do_not_take_good_ones_with_them() -> None:
    backend = byte_fallback()
    tokenizer = Tokenizer(backend, {}, templates={}, end_ids=None)
    vocab = backend.get_vocab()
    ids = [vocab[f"<0x{byte:02X}>"] for byte in (0xE2, 0x82, 0xAC, 0xFF, 0x41)]
    assert stream(tokenizer, ids) == ["", "", "€", "\ufffd", "A", ""]
    assert tokenizer.decode(ids) == "€\ufffdA"


def test_ids_beyond_the_vocabulary_have_no_text(opened: Tokenizer) -> None:
    ids = opened.encode("the fox", add_special_tokens=False)
    mixed = [ids[0], opened.vocab_size + 7, *ids[1:], opened.vocab_size]
    assert opened.decode(mixed) == opened.decode(ids) == "".join(stream(opened, mixed))


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("config", [{}, {"add_bos_token": False}, {"add_bos_token": True}])
def test_encode_equals_transformers(tmp_path: Path, name: str, config: dict[str, bool]) -> None:
    directory = save(MAKERS[name](), tmp_path, **config)
    ours, theirs = Tokenizer.open(directory), AutoTokenizer.from_pretrained(directory)
    for text in TEXTS:
        for special in (True, False):
            want = theirs.encode(text, add_special_tokens=special)
            assert ours.encode(text, add_special_tokens=special) == want, text
        assert ours.decode(want) == theirs.decode(want, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("generation", "expected"),
    [({"eos_token_id": [7, 2]}, (7, 2)), ({"eos_token_id": 9}, (9,)), ({}, None), (None, None)],
)
def test_end_ids(
    tmp_path: Path, generation: dict[str, object] | None, expected: tuple[int, ...] | None
) -> None:
    directory = save(byte_level(), tmp_path)
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    tokenizer = Tokenizer.open(directory)
    assert tokenizer.end_ids == (expected or (tokenizer.eos_id,))


def test_what_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="tokenizer.json: missing"):
        Tokenizer.open(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="expected a tokenizer.json"):
        Tokenizer.open(tmp_path)
    directory = save(byte_level(), tmp_path)
    (directory / "generation_config.json").write_text('{"eos_token_id": "two"}')
    with pytest.raises(CheckpointError, match="eos_token_id: 'two'"):
        Tokenizer.open(directory)


REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}


@pytest.mark.parametrize(
    "parts",
    [
        [{"type": "WordPiece", "prefix": "##", "cleanup": True}],
        [{"type": "Fuse"}, REPLACE],
        [{"type": "Fuse"}, {"type": "ByteFallback"}],
        [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 1}],
    ],
)
def test_a_decoder_that_needs_several_tokens_is_refused(
    parts: list[dict[str, object]], tmp_path: Path
) -> None:
    directory = save(byte_level(), tmp_path)
    state = json.loads((directory / "tokenizer.json").read_text())
    state["decoder"] = {"type": "Sequence", "decoders": parts}
    (directory / "tokenizer.json").write_text(json.dumps(state))
    named = ", ".join(str(part["type"]) for part in parts)
    with pytest.raises(UnsupportedError, match=f"decoder of {named}, expected ByteLevel"):
        Tokenizer.open(directory)
