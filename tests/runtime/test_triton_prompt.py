import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from llmc.errors import ServeError
from llmc.model_repo import signatures
from llmc.runtime.tokenizer import Tokenizer
from llmc.runtime.triton_prompt import REFUSED, read_prompts
from tests.runtime.tiny_tokenizers import byte_fallback, save


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """One that puts a BOS in front."""
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    return Tokenizer.open(save(byte_fallback(), directory))


def texts(*rows: str) -> npt.NDArray[np.object_]:
    return np.array([[row.encode()] for row in rows], np.object_)


def read(tokenizer: Tokenizer, *rows: str, add_special_tokens: bool = True, **more: Any) -> Any:
    lengths = np.full((len(rows), 1), 7, np.int32)
    inputs = {"QUERY": texts(*rows), "REQUEST_OUTPUT_LEN": lengths} | more
    return read_prompts(inputs, tokenizer, add_special_tokens=add_special_tokens)


def test_prompts_are_encoded_and_padded(tokenizer: Tokenizer) -> None:
    outputs = read(tokenizer, "the fox", "日本語")
    ids = [tokenizer.encode("the fox"), tokenizer.encode("日本語")]
    assert outputs["REQUEST_INPUT_LEN"].tolist() == [[len(ids[0])], [len(ids[1])]]
    for row, length, expected in zip(
        outputs["INPUT_ID"], outputs["REQUEST_INPUT_LEN"], ids, strict=True
    ):
        assert row[: length[0]].tolist() == expected
        assert not row[length[0] :].any()
    assert outputs["REQUEST_OUTPUT_LEN"].tolist() == [[7], [7]]
    declared = {tensor.name: len(tensor.dims) for tensor in signatures.PREPROCESSING_OUTPUTS}
    for name, array in outputs.items():
        assert array.ndim == 1 + declared[name], name


def test_special_tokens_are_added_once(tokenizer: Tokenizer) -> None:
    assert read(tokenizer, "the")["INPUT_ID"][0, 0] == tokenizer.bos_id
    bare = read(tokenizer, "the", add_special_tokens=False)["INPUT_ID"]
    assert bare[0].tolist() == tokenizer.encode("the", add_special_tokens=False)
    messages = [{"role": "user", "content": "hi"}]
    chat = read(tokenizer, json.dumps(messages), APPLY_CHAT_TEMPLATE=np.array([[True]]))
    rendered = tokenizer.apply_chat_template(messages)
    assert chat["INPUT_ID"][0].tolist() == tokenizer.encode(rendered, add_special_tokens=False)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hi", "expected a JSON list of messages"),
        ("[]", "at least one message"),
        ('{"role": "user"}', "at least one message"),
        ('[{"role": "user"}]', "message 0 needs a text for role and for content"),
        ('[{"role": "user", "content": 3}]', "message 0 needs"),
    ],
)
def test_what_is_no_chat_is_refused(tokenizer: Tokenizer, text: str, reason: str) -> None:
    with pytest.raises(ServeError, match=reason):
        read(tokenizer, text, APPLY_CHAT_TEMPLATE=np.array([[True]]))


def test_a_client_says_what_ends_and_pads(tokenizer: Tokenizer) -> None:
    outputs = read(tokenizer, "a", END_ID=np.array([[9]]), PAD_ID=np.array([[8]]))
    assert (outputs["OUT_END_ID"].item(), outputs["OUT_PAD_ID"].item()) == (9, 8)
    assert (outputs["STOP_WORDS_IDS"][:, 1] == -1).all()


def test_else_the_models_own_ends_do(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT-LLM's executor knows none, and takes one end token and any number of words."""
    monkeypatch.setattr(tokenizer, "end_ids", (5, 6, 7))
    words = np.array([[b"fox"], [b""]], np.object_)
    outputs = read(tokenizer, "a", "b", STOP_WORDS_DICT=words)
    assert outputs["OUT_END_ID"].tolist() == [[5], [5]]
    assert "OUT_PAD_ID" not in outputs
    fox = tokenizer.encode("fox", add_special_tokens=False)
    ends = len(fox) + np.arange(3)
    assert outputs["STOP_WORDS_IDS"][0, 0].tolist() == [*fox, 6, 7]
    assert outputs["STOP_WORDS_IDS"][0, 1, :3].tolist() == ends.tolist()
    assert outputs["STOP_WORDS_IDS"][1, 0, :2].tolist() == [6, 7]
    monkeypatch.setattr(tokenizer, "end_ids", ())
    assert "OUT_END_ID" not in read(tokenizer, "a")


def test_words_are_tokenized_and_empty_ones_dropped(tokenizer: Tokenizer) -> None:
    words = np.array([[b"fox", b""], [b"", b""]], np.object_)
    outputs = read(tokenizer, "a", "b", STOP_WORDS_DICT=words)
    ids = tokenizer.encode("fox", add_special_tokens=False)
    assert outputs["STOP_WORDS_IDS"][0, 0].tolist() == ids
    assert outputs["STOP_WORDS_IDS"][0, 1, 0] == len(ids)
    assert (outputs["STOP_WORDS_IDS"][1, 1] == -1).all()
    assert outputs["BAD_WORDS_IDS"].tolist() == [[[0], [-1]], [[0], [-1]]]


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_decoder_takes_is_refused(tokenizer: Tokenizer, name: str) -> None:
    declared = {tensor.name: tensor.dtype for tensor in signatures.PREPROCESSING_INPUTS}
    value: Any = texts("x") if declared[name] == "STRING" else np.ones((1, 1), np.int32)
    with pytest.raises(ServeError, match=f"not supported by this engine: {name}"):
        read(tokenizer, "a", **{name: value})
    nothing: Any = texts("") if declared[name] == "STRING" else value[:, :0]
    read(tokenizer, "a", **{name: nothing})
