"""Writes docs/cli.md from the commands themselves: `python -m llmc.cli.reference docs/cli.md`."""

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from llmc import errors
from llmc.cli import COMMANDS
from llmc.cli.build import FLAGS
from llmc.cli.main import app, load_command
from llmc.recipes.loader import leaf_fields, load_recipe, parse_set
from llmc.targets import TARGETS


def render_reference() -> str:
    """Return the whole page."""
    import typer

    root: Any = typer.main.get_command(app)
    parts = [
        "# The command line",
        "Made by `make docs` from the commands themselves; a test keeps it current.",
        "Results go to stdout, everything else to stderr. Commands that report take `--json`.",
        "## llmc",
        _table(parameter for parameter in root.params if parameter.name != "help"),
    ]
    for name in COMMANDS:
        command = load_command(name)
        shared = ("debug", "log_level", "help")
        own = (parameter for parameter in command.params if parameter.name not in shared)
        parts += [f"## llmc {name}", _prose(command.help, name), _table(own)]
    parts += ["## Exit codes", _exit_codes(), "## Recipe fields", _recipe_fields()]
    return "\n\n".join(parts) + "\n"


def _prose(text: str, name: str) -> str:
    """Keep paragraphs; put the commands after "Examples:" into one block."""
    plain = inspect.cleandoc(text).replace("[bold]", "").replace("[/]", "")
    prose, _, examples = re.sub(r"\bExample:", "Examples:", plain).partition("Examples:")
    lines = [line.strip() for line in examples.splitlines() if line.strip()]
    assert lines and all(f"llmc {name}" in line for line in lines), f"{name}: examples are commands"
    block = "\n".join(["```sh", *lines, "```"])
    return f"{prose.strip()}\n\n{block}"


def _table(parameters: Any) -> str:
    rows = ["| | | default |", "|---|---|---|"]
    for parameter in parameters:
        argument = parameter.param_type_name == "argument"
        names = parameter.opts if not argument else [parameter.metavar or parameter.name]
        names = [*names, *getattr(parameter, "secondary_opts", ())]
        default = "required" if parameter.required else _default(parameter.default)
        label = ", ".join(f"`{name}`" for name in names)
        rows.append(f"| {label} | {_cell(parameter.help or '')} | {default} |")
    return "\n".join(rows)


def _default(value: Any) -> str:
    if value is None or value is False or value == [] or callable(value):
        return ""
    return f"`{'on' if value is True else value}`"


def _exit_codes() -> str:
    rows = ["| code | reader's action |", "|---|---|", "| 0 | none: it worked |"]
    rows.append("| 1 | report a bug: the traceback is on stderr |")
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type)]
    known = [cls for cls in classes if issubclass(cls, errors.LlmcError) and cls.exit_code > 1]
    for cls in sorted(known, key=lambda cls: cls.exit_code):
        first = (cls.__doc__ or "").split("\n\n")[0].split(". ")[0].rstrip(".")
        rows.append(f"| {cls.exit_code} | {first} |")
    return "\n".join(rows)


_ABSENT = object()


def _recipe_fields() -> str:
    flags = {field: flag for flag, field in FLAGS.items()}
    recipes = [
        load_recipe(None, [parse_set("model=x"), parse_set(f"target.kind={kind}")])
        for kind in TARGETS
    ]
    rows = ["| field | flag | default | |", "|---|---|---|---|"]
    for field, description in leaf_fields():
        value = next(
            found for recipe in recipes if (found := _field_value(recipe, field)) is not _ABSENT
        )
        default = "required" if field == "model" else _yaml(value)
        flag = f"`{flags[field]}`" if field in flags else "`--set`"
        rows.append(f"| `{field}` | {flag} | {default} | {_cell(description)} |")
    return "\n".join(rows)


def _field_value(recipe: Any, field: str) -> Any:
    """Return the field's value; _ABSENT where this variant of a part has none."""
    for name in field.split("."):
        recipe = getattr(recipe, name, _ABSENT)
    return recipe


def _yaml(value: Any) -> str:
    if value is None:
        return "none"
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render_reference(), encoding="utf-8")
