"""Command lines of TensorRT-LLM's tools, read into what a recipe would say."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import PurePath
from typing import Any

import yaml

from llmc.errors import RecipeError
from llmc.recipes.loader import Override, load_recipe, parse_set
from llmc.recipes.migration import IMPLIED, NOT_SAID, TOOLS, Flag

_BARE = ("-i", "--in_place")
"""Switches of fill_template.py itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One flag of a command line, with what followed it; `values` is empty for a switch."""

    flag: Flag
    name: str
    values: tuple[str, ...]

    @property
    def source(self) -> str:
        return " ".join([self.name, *self.values])


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """What command lines say: recipe fields, and the flags that no field says."""

    fields: dict[str, Any]
    left: tuple[tuple[str, str], ...]

    def to_yaml(self) -> str:
        """Return a recipe with these fields alone, and a comment for each flag without one."""
        tree: dict[str, Any] = {}
        for name, value in self.fields.items():
            *parents, leaf = name.split(".")
            part = tree
            for parent in parents:
                part = part.setdefault(parent, {})
            part[leaf] = value
        lines = [f"# {source}: {why}" for source, why in self.left]
        if "model" not in tree:
            lines.insert(0, "# model: the Hugging Face directory; add it, or give --model")
        body = yaml.safe_dump(tree, sort_keys=False) if tree else ""
        return "\n".join([*lines, body]) if lines else body


def migrate(commands: Sequence[str]) -> Migrated:
    """Read command lines of one build, in order; a later one wins where two say the same.

    Raises: RecipeError for a program or flag that is not known, or a value no recipe takes.
    """
    fields: dict[str, tuple[Any, str]] = {}
    left: list[tuple[str, str]] = []
    for command in commands:
        tool, words = _split_tool(command)
        pairs = _placeholders(words) if tool == "fill_template.py" else _flags(tool, words)
        given = list(pairs)
        fields |= {name: (value, tool) for name, value in IMPLIED.get(tool, {}).items()}
        # Switches first: --use_weight_only is what the flag that says more of it refines.
        for one in sorted(given, key=lambda one: one.flag.takes != "none"):
            if one.flag.field is None:
                left.append((one.source, one.flag.note))
            else:
                value = _value(one)
                if value is not NOT_SAID:
                    fields[one.flag.field] = (value, one.source)
        fields |= _combined({one.flag.names[0] for one in given}, fields)
    overrides = [
        Override(path=tuple(name.split(".")), value=value, source=source)
        for name, (value, source) in fields.items()
    ]
    named = [] if "model" in fields else [parse_set("model=unknown")]
    load_recipe(None, [*named, *overrides])
    return Migrated(fields={name: value for name, (value, _) in fields.items()}, left=tuple(left))


def _split_tool(command: str) -> tuple[str, list[str]]:
    """Return the program and its arguments; what stands before it (python, mpirun) is not ours."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError as error:
        raise RecipeError(f"{command}: {error}, expected a command line") from error
    # A line broken with a backslash leaves nothing behind in a shell.
    words = [word for word in words if word.strip()]
    for index, word in enumerate(words):
        if PurePath(word).name in TOOLS:
            return PurePath(word).name, words[index + 1 :]
    raise RecipeError(f"{command}: none of {', '.join(TOOLS)} is called")


def _flags(tool: str, words: Sequence[str]) -> Iterator[Given]:
    known = {name: flag for flag in TOOLS[tool] for name in flag.names}
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name not in known:
            raise _unknown(tool, name, [*known])
        flag, values = known[name], [value] if equals else []
        most = {"none": 0, "one": 1, "maybe": 1, "many": len(rest)}[flag.takes]
        while len(values) < most and rest and rest[0] not in known and not rest[0].startswith("--"):
            values.append(rest.pop(0))
        if flag.takes in ("one", "many") and not values:
            raise RecipeError(f"{tool} {name}: a value is missing")
        yield Given(flag=flag, name=name, values=tuple(values))


def _placeholders(words: Sequence[str]) -> Iterator[Given]:
    """Read `FILE name:value,name:value`; a backslash keeps a comma or colon from separating."""
    known = {name: flag for flag in TOOLS["fill_template.py"] for name in flag.names}
    arguments = [word for word in words if word not in _BARE]
    if len(arguments) != 2:
        raise RecipeError(f"fill_template.py: {arguments}, expected a file and its substitutions")
    for pair in _split(arguments[1], ","):
        name, *values = _split(pair, ":")
        if name not in known:
            raise _unknown("fill_template.py", name, [*known])
        if len(values) != 1:
            raise RecipeError(f"fill_template.py {pair}: expected NAME:VALUE")
        plain = values[0].replace("\\", "")
        yield Given(flag=known[name], name=name, values=(plain,))


def _split(text: str, separator: str) -> list[str]:
    parts, escaped = [""], False
    for character in text:
        if character == separator and not escaped:
            parts.append("")
        else:
            parts[-1] += character
        escaped = character == "\\" and not escaped
    return parts


def _value(given: Given) -> Any:
    flag = given.flag
    if flag.takes == "none":
        return flag.value
    if not given.values:
        return NOT_SAID
    if flag.takes == "many":
        return [*given.values]
    text = given.values[0]
    if text in flag.values:
        return flag.values[text]
    if flag.field in ("quantization.algo", "quantization.kv_cache"):
        known = ", ".join(flag.values)
        raise RecipeError(f"{given.source}: not a format of llmc's, expected one of {known}")
    return text if flag.field == "model" else flag.read(text)


def _combined(names: set[str], fields: dict[str, tuple[Any, str]]) -> dict[str, tuple[Any, str]]:
    """Return the fields that several flags of one command say together."""
    algo = "quantization.algo"
    if "--auto_quantize_bits" in names:
        return {algo: ("auto", "--auto_quantize_bits")}
    if "--smoothquant" in names:
        weights = "PER_CHANNEL" if "--per_channel" in names else "PER_TENSOR"
        inputs = "PER_TOKEN_PLUGIN" if "--per_token" in names else "PER_TENSOR_PLUGIN"
        name = f"W8A8_SQ_{weights}_{inputs}"
        # Both per tensor is the one name that says it once.
        return {algo: (name.replace("PER_TENSOR_PER_TENSOR", "PER_TENSOR"), "--smoothquant")}
    if "--weight_only_precision" in names and "--use_weight_only" not in names:
        # The converter, too, looks at it with --use_weight_only only.
        fields.pop(algo, None)
    return {}


def _unknown(tool: str, name: str, known: list[str]) -> RecipeError:
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "docs/migrate.md has the flags llmc knows"
    return RecipeError(f"{tool} has no {name}", hint=hint)
