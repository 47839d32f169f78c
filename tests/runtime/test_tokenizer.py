"""Tokenizer against the tokenizers library and transformers; streams against whole decodes."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from llmc.errors import CheckpointError, ServeError, UnsupportedError
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
MESSAGES = [
    {"role": "system", "content": 'Be <brief> & "kind".'},
    {"role": "user", "content": "日本語?"},
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


@settings(max_examples=300, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(MAKERS)), skip=st.booleans())
def test_stream_of_any_tokens_is_the_whole_decode(
    all_opened: dict[str, Tokenizer], data: st.DataObject, name: str, skip: bool
) -> None:
    tokenizer = all_opened[name]
    token = st.integers(0, tokenizer.vocab_size + 20)
    ids = data.draw(st.lists(token, max_size=30))
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=5).map(sorted))
    decoder = IncrementalDecoder(tokenizer, skip_special_tokens=skip)
    edges = [0, *cuts, len(ids)]
    parts = [decoder.push(ids[a:b]) for a, b in zip(edges, edges[1:], strict=False)]
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(parts) + decoder.flush() == whole
    reference = tokenizer._backend.decode(ids, skip_special_tokens=skip)
    if "\ufffd" not in reference:
        assert whole == reference


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40), name=st.sampled_from(sorted(MAKERS)))
def test_streaming_text_never_shows_half_a_character(
    all_opened: dict[str, Tokenizer], text: str, name: str
) -> None:
    tokenizer = all_opened[name]
    ids = tokenizer.encode(text, add_special_tokens=False)
    parts = stream(tokenizer, ids, skip=False)
    whole = tokenizer._backend.decode(ids, skip_special_tokens=False)
    assert "".join(parts) == whole
    assert sum(part.count("\ufffd") for part in parts) == whole.count("\ufffd")


def test_space_after_a_skipped_special_token_stays(all_opened: dict[str, Tokenizer]) -> None:
    for tokenizer in all_opened.values():
        ids = tokenizer.encode("the", add_special_tokens=False)
        ids += [tokenizer.bos_id or 0, *tokenizer.encode("fox the", add_special_tokens=False)]
        expected = tokenizer._backend.decode(ids, skip_special_tokens=True)
        assert "".join(stream(tokenizer, ids)) == expected


def test_broken_bytes_do_not_take_good_ones_with_them() -> None:
    backend = byte_fallback()
    tokenizer = Tokenizer(backend, {}, template=None, end_ids=None)
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
def test_encode_and_template_equal_transformers(
    tmp_path: Path, name: str, config: dict[str, bool]
) -> None:
    directory = save(MAKERS[name](), tmp_path, **config)
    ours, theirs = Tokenizer.open(directory), AutoTokenizer.from_pretrained(directory)
    for text in TEXTS:
        for special in (True, False):
            want = theirs.encode(text, add_special_tokens=special)
            assert ours.encode(text, add_special_tokens=special) == want, text
        assert ours.decode(want) == theirs.decode(want, skip_special_tokens=True)
    for prompt in (True, False):
        want = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=prompt)
        assert ours.apply_chat_template(MESSAGES, add_generation_prompt=prompt) == want


def test_bos_is_never_doubled(all_opened: dict[str, Tokenizer]) -> None:
    for tokenizer in all_opened.values():
        rendered = tokenizer.apply_chat_template(MESSAGES)
        for special in (True, False):
            ids = tokenizer.encode(rendered, add_special_tokens=special)
            assert ids.count(tokenizer.bos_id or 0) == 1 and ids[0] == tokenizer.bos_id


def test_template_file_goes_before_config_and_may_be_one_of_a_list(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    directory = save(byte_level(), tmp_path, chat_template=named)
    assert Tokenizer.open(directory).apply_chat_template(MESSAGES) == "D"
    (directory / "chat_template.jinja").write_text(
        "{% generation %}{{ messages | tojson }}{% endgeneration %}{{ strftime_now('%Y') }}"
    )
    rendered = Tokenizer.open(directory).apply_chat_template(MESSAGES)
    assert rendered.startswith(json.dumps(MESSAGES, ensure_ascii=False)) and "<brief>" in rendered
    assert rendered[-4:].isdecimal()


def test_templates_cannot_reach_out_and_their_errors_are_refusals(tmp_path: Path) -> None:
    directory = save(byte_level(), tmp_path)
    with pytest.raises(ServeError, match="role bad is not known"):
        Tokenizer.open(directory).apply_chat_template([{"role": "bad", "content": ""}])
    escape = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    (directory / "chat_template.jinja").write_text(escape)
    with pytest.raises(ServeError, match="unsafe"):
        Tokenizer.open(directory).apply_chat_template(MESSAGES)
    (directory / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(CheckpointError, match="chat_template.jinja: line 1"):
        Tokenizer.open(directory)


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
    directory = save(byte_level(), tmp_path, chat_template=None)
    with pytest.raises(CheckpointError, match="no chat template"):
        Tokenizer.open(directory).apply_chat_template(MESSAGES)
    (directory / "generation_config.json").write_text('{"eos_token_id": "two"}')
    with pytest.raises(CheckpointError, match="eos_token_id: 'two'"):
        Tokenizer.open(directory)
    state = json.loads((directory / "tokenizer.json").read_text())
    state["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (directory / "tokenizer.json").write_text(json.dumps(state))
    (directory / "generation_config.json").unlink()
    with pytest.raises(UnsupportedError, match="decoder of WordPiece"):
        Tokenizer.open(directory)
