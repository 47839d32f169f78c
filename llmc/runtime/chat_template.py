"""A model's chat template, rendered in a sandbox with the names transformers offers it.

A template is code from whoever published the model: it can read what it is given and nothing else.

Source: huggingface/transformers 5 src/transformers/utils/chat_template_utils.py.
"""

import json
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from llmc.errors import CheckpointError, ServeError


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
