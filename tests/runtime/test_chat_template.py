"""Chat templates: where they come from, which is taken, and the tokens of a chat."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from llmc.errors import CheckpointError, ServeError
from llmc.runtime.tokenizer import Tokenizer
from llmc.runtime.triton_prompt import read_prompts
from tests.runtime.tiny_tokenizers import MAKERS, TEMPLATE, byte_fallback, byte_level, save

MESSAGES = [
    {"role": "system", "content": 'Be <brief> & "kind".'},
    {"role": "user", "content": " 日本語? 👩‍👩‍👧"},
]
CHATS: dict[str, dict[str, Any]] = {
    "template writes BOS": {},
    "template writes none": {"chat_template": TEMPLATE.removeprefix("{{ bos_token }}")},
    "no BOS": {"bos_token": None},
}
"""What of tokenizer_config.json decides the beginning of a chat."""


def served_ids(tokenizer: Tokenizer, text: str, *, chat: bool, special: bool) -> list[int]:
    """Return what Triton's preprocessing model makes of one query."""
    inputs = {
        "QUERY": np.array([[text.encode()]], np.object_),
        "REQUEST_OUTPUT_LEN": np.array([[1]], np.int32),
        "APPLY_CHAT_TEMPLATE": np.array([[chat]], np.bool_),
    }
    outputs = read_prompts(inputs, tokenizer, add_special_tokens=special)
    assert outputs["REQUEST_INPUT_LEN"].item() == outputs["INPUT_ID"].shape[1]
    return [int(token) for token in outputs["INPUT_ID"][0]]


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("config", CHATS.values(), ids=CHATS)
def test_the_tokens_of_a_chat_are_transformers(
    kind: str, config: dict[str, Any], tmp_path: Path
) -> None:
    directory = save(MAKERS[kind](), tmp_path, **config)
    ours, theirs = Tokenizer.open(directory), AutoTokenizer.from_pretrained(directory)
    for prompt in (True, False):
        text = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=prompt)
        assert ours.apply_chat_template(MESSAGES, add_generation_prompt=prompt) == text
    wanted = theirs.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    for special in (True, False):
        assert served_ids(ours, json.dumps(MESSAGES), chat=True, special=special) == wanted


@pytest.mark.parametrize("kind", MAKERS)
def test_a_bos_is_never_doubled(kind: str, tmp_path: Path) -> None:
    """Neither by the chat itself nor for a client that renders it and sends it as a text."""
    tokenizer = Tokenizer.open(save(MAKERS[kind](), tmp_path))
    rendered = tokenizer.apply_chat_template(MESSAGES)
    assert rendered.startswith("<s>")
    for special in (True, False):
        ids = served_ids(tokenizer, rendered, chat=False, special=special)
        assert ids[0] == tokenizer.bos_id and ids.count(ids[0]) == 1


def in_file(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("F {{ messages | length }}")


def additional(directory: Path) -> None:
    folder = directory / "additional_chat_templates"
    folder.mkdir()
    (folder / "tool_use.jinja").write_text("T {{ tools | length }}")


NAMED = [{"name": "tool_use", "template": "NT"}, {"name": "default", "template": "ND"}]


@pytest.mark.parametrize(
    ("in_config", "writers", "plain", "with_tools"),
    [
        ("C", [], "C", "C"),
        (NAMED, [], "ND", "NT"),
        ("C", [in_file], "F 2", "F 2"),
        (None, [in_file], "F 2", "F 2"),
        (NAMED, [in_file], "F 2", "F 2"),
        (None, [in_file, additional], "F 2", "T 1"),
        ("C", [in_file, additional], "F 2", "T 1"),
    ],
)
def test_where_templates_come_from(
    in_config: Any,
    writers: list[Callable[[Path], None]],
    plain: str,
    with_tools: str,
    tmp_path: Path,
) -> None:
    directory = save(byte_level(), tmp_path, chat_template=in_config)
    for write in writers:
        write(directory)
    ours, theirs = Tokenizer.open(directory), AutoTokenizer.from_pretrained(directory)
    tools: list[Any] = [{"type": "function", "function": {"name": "f"}}]
    assert ours.apply_chat_template(MESSAGES) == plain
    assert ours.apply_chat_template(MESSAGES, tools=tools) == with_tools
    assert theirs.apply_chat_template(MESSAGES, tokenize=False) == plain
    assert theirs.apply_chat_template(MESSAGES, tokenize=False, tools=tools) == with_tools


@pytest.mark.parametrize(
    ("in_config", "message"),
    [
        (None, "the model has no chat template"),
        ([NAMED[0]], "chat templates tool_use: none is named 'default'"),
    ],
)
def test_no_template_for_a_chat(in_config: Any, message: str, tmp_path: Path) -> None:
    directory = save(byte_level(), tmp_path, chat_template=in_config)
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.open(directory).apply_chat_template(MESSAGES)


@pytest.mark.parametrize("broken", [7, [7], [{"name": "default"}], {"default": "D"}])
def test_a_template_that_is_none_is_named(broken: Any, tmp_path: Path) -> None:
    directory = save(byte_level(), tmp_path, chat_template=broken)
    with pytest.raises(CheckpointError, match="tokenizer_config.json: chat_template: .*expected a"):
        Tokenizer.open(directory)


def test_names_that_templates_may_use(tmp_path: Path) -> None:
    directory = save(byte_level(), tmp_path)
    (directory / "chat_template.jinja").write_text(
        "{% generation %}{{ messages | tojson }}{% endgeneration %}{{ strftime_now('%Y') }}"
    )
    rendered = Tokenizer.open(directory).apply_chat_template(MESSAGES)
    assert rendered.startswith(json.dumps(MESSAGES, ensure_ascii=False)) and "<brief>" in rendered
    assert rendered[-4:].isdecimal()


def test_templates_cannot_reach_out_and_their_errors_are_refusals(tmp_path: Path) -> None:
    directory = save(byte_fallback(), tmp_path)
    with pytest.raises(ServeError, match="role bad is not known"):
        Tokenizer.open(directory).apply_chat_template([{"role": "bad", "content": ""}])
    file = directory / "chat_template.jinja"
    file.write_text("{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(ServeError, match="unsafe"):
        Tokenizer.open(directory).apply_chat_template(MESSAGES)
    file.write_text("{% for %}")
    with pytest.raises(CheckpointError, match="chat_template.jinja: line 1"):
        Tokenizer.open(directory)
    file.write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="chat_template.jinja: cannot be read"):
        Tokenizer.open(directory)
