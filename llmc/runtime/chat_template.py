"""A model's chat templates, rendered in a sandbox with the names transformers offers them.

A template is code from whoever published the model: it can read what it is given and nothing else.

Source: huggingface/transformers 5 src/transformers/utils/chat_template_utils.py.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from llmc.errors import CheckpointError, ServeError

TEMPLATE_FILE = "chat_template.jinja"
TEMPLATES_FOLDER = "additional_chat_templates"
"""Holds `<name>.jinja` of every template but the default."""

_DEFAULT, _TOOL_USE = "default", "tool_use"


class ChatTemplate:
    """One compiled template; rendering keeps no state."""

    def __init__(self, source: str, *, where: str) -> None:
        """Compile `source`; `where` names its origin in errors. Raises: CheckpointError."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise CheckpointError(f"{where}: line {error.lineno}: {error.message}") from error

    def render(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        """Return the prompt of a conversation.

        Raises: ServeError when the template refuses it (its raise_exception) or cannot render it.
        """
        names = {"tools": None, "documents": None} | variables
        try:
            return self._template.render(messages=messages, **names)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, OverflowError) as error:
            raise ServeError(f"chat template: {error}") from error


def choose_template(templates: Mapping[str, ChatTemplate], *, with_tools: bool) -> ChatTemplate:
    """Return the template of a conversation, by transformers' rule.

    Raises: CheckpointError when there is none, or no default among several.
    """
    names = (_TOOL_USE, _DEFAULT) if with_tools else (_DEFAULT,)
    for name in names:
        if name in templates:
            return templates[name]
    if templates:
        raise CheckpointError(
            f"chat templates {', '.join(sorted(templates))}: none is named {_DEFAULT!r}",
            hint=f"save the one to use as {TEMPLATE_FILE} beside tokenizer.json",
        )
    raise CheckpointError(
        "the model has no chat template",
        hint=f"use a chat model, or put a {TEMPLATE_FILE} beside its tokenizer.json",
    )


def read_templates(directory: Path, config: Mapping[str, Any]) -> dict[str, ChatTemplate]:
    """Return the templates of a model by name; the only one of a model is its default.

    Files go before `config`, the content of tokenizer_config.json, and do not mix with it.
    Raises: CheckpointError for a template that cannot be read or compiled.
    """
    paths = {_DEFAULT: directory / TEMPLATE_FILE} if (directory / TEMPLATE_FILE).is_file() else {}
    paths |= {path.stem: path for path in sorted((directory / TEMPLATES_FOLDER).glob("*.jinja"))}
    if paths:
        return {name: ChatTemplate(_read(path), where=str(path)) for name, path in paths.items()}
    where = f"{directory / 'tokenizer_config.json'}: chat_template"
    found = config.get("chat_template")
    if found is None:
        return {}
    named = found if isinstance(found, list) else [{"name": _DEFAULT, "template": found}]
    templates = {}
    for item in named:
        match item:
            case {"name": str(name), "template": str(source)}:
                templates[name] = ChatTemplate(source, where=where)
            case _:
                wanted = "a text, or a list of objects with name and template"
                raise CheckpointError(f"{where}: {found!r:.80}, expected {wanted}")
    return templates


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


class _Generation(Extension):
    """{% generation %}…{% endgeneration %}: marks for training, here only what they enclose."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own filter escapes HTML, which a prompt must not have."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
