"""Reads recipes: YAML and overrides in, a valid `Recipe` or errors with their place out.

Precedence: file < `--set` < named flag, in the order the caller gives the overrides.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from llmc.errors import RecipeError
from llmc.recipes import PRESETS
from llmc.recipes.schema import Recipe
from llmc.targets import TARGETS

Location = tuple[str | int, ...]

PATH_FIELDS = ("model", "quantization.calibration.data", "gate.texts", "gate.reference")
"""Fields that hold a path or a list of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One value given on the command line. `source` is what the user typed, for error messages."""

    path: tuple[str, ...]
    value: Any
    source: str


def parse_set(text: str) -> Override:
    """Parse `--set a.b=c`; the value is YAML, so true, 3, null and [a, b] have types.

    Raises: RecipeError when the text has no `=`, an empty name or a value that is not YAML.
    """
    name, equals, value = text.partition("=")
    path = tuple(name.strip().split("."))
    if not equals or not all(path):
        raise RecipeError(f"--set {text}: expected NAME.NAME=VALUE")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise RecipeError(f"--set {text}: the value is not YAML: {_problem(error)}") from error
    return Override(path=path, value=parsed, source=f"--set {text}")


def load_recipe(path: Path | None, overrides: Sequence[Override] = ()) -> Recipe:
    """Read the recipe at `path` (none: all defaults), apply `overrides` in order and validate.

    A relative path in the file is taken from the file's directory, one in an override from the
    working directory; the result's are absolute.
    Raises: RecipeError with one `place: field: found, expected` line per mistake.
    """
    document = _Document.read(path) if path is not None else _Document.empty()
    data = document.data
    if path is not None:
        _anchor(data, path.parent)
    for override in overrides:
        _apply(data, override)
    _anchor(data, Path.cwd())
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        lines = [document.describe(detail, overrides) for detail in error.errors()]
        raise RecipeError("\n".join(dict.fromkeys(lines)), hint=_hint(error.errors())) from error


def preset_path(name: str) -> Path:
    """Return the file of preset `name`; asserts that it is one."""
    return Path(__file__).parent / PRESETS[name]


def dump_recipe(recipe: Recipe, comment: str) -> str:
    """Return `recipe` as YAML with every field present, under a comment line."""
    body = yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, width=100)
    return f"# {comment}\n{body}"


def leaf_fields(model: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted name, description) of every field that holds a value, in order."""
    for name, field in model.model_fields.items():
        part = field.annotation
        if isinstance(part, type) and issubclass(part, BaseModel):
            yield from leaf_fields(part, f"{prefix}{name}.")
        elif variants := _variants(part):
            yield from _variant_fields(variants, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field.description or ""


def _variants(part: object) -> tuple[type[BaseModel], ...]:
    found = (getattr(one, "__origin__", one) for one in get_args(part))
    return tuple(one for one in found if isinstance(one, type) and issubclass(one, BaseModel))


def _variant_fields(variants: Sequence[type[BaseModel]], prefix: str) -> Iterator[tuple[str, str]]:
    """Yield `kind` once, then the fields of each variant, which say whose they are."""
    kinds = [get_args(one.model_fields["kind"].annotation)[0] for one in variants]
    yield f"{prefix}kind", f"One of {', '.join(kinds)}."
    for kind, one in zip(kinds, variants, strict=True):
        for name, description in leaf_fields(one, prefix):
            if name != f"{prefix}kind":
                yield name, f"{kind}: {description}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    """A YAML file as values, and where each value and key stands."""

    name: str
    data: dict[str, Any]
    root: yaml.MappingNode | None

    @classmethod
    def empty(cls) -> "_Document":
        return cls(name="", data={}, root=None)

    @classmethod
    def read(cls, path: Path) -> "_Document":
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise RecipeError(f"{path}: {reason}") from error
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                return cls.empty()
            if not isinstance(root, yaml.MappingNode):
                raise RecipeError(f"{path}: a list or a value, expected fields like `model: …`")
            _refuse_duplicates(path, root, set())
            data = loader.construct_document(root)
        except yaml.YAMLError as error:
            raise RecipeError(f"{path}{_problem(error)}") from error
        finally:
            loader.dispose()
        return cls(name=str(path), data=data, root=root)

    def describe(self, detail: ErrorDetails, overrides: Sequence[Override]) -> str:
        """Return one error as `place: field: found, expected`."""
        location = _location(detail)
        field = ".".join(map(str, location))
        message = f"{field}: {_expectation(detail)}"
        for override in reversed(overrides):
            if location[: len(override.path)] == override.path[: len(location)]:
                return f"{override.source}: {message}"
        if self.root is None:
            return message
        node = self._find(location, on_key=detail["type"] == "extra_forbidden")
        return f"{self.name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}: {message}"

    def _find(self, location: Location, *, on_key: bool) -> yaml.Node:
        """Return the node of `location`, or of the innermost part of it that the file has."""
        node: yaml.Node = self.root if self.root is not None else yaml.MappingNode("", [])
        for depth, step in enumerate(location):
            if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
                node = node.value[step]
                continue
            if not isinstance(node, yaml.MappingNode):
                break
            for key, value in node.value:
                if key.value == str(step):
                    node = key if on_key and depth == len(location) - 1 else value
                    break
        return node


def _location(detail: ErrorDetails) -> Location:
    """Return the field's place in the recipe; pydantic's has the variant's name in it."""
    location = detail["loc"]
    if detail["type"] == "union_tag_invalid":
        return (*location, "kind")
    if location[0] == "target" and len(location) > 1 and location[1] in TARGETS:
        return (location[0], *location[2:])
    return location


def _anchor(data: dict[str, Any], directory: Path) -> None:
    """Put `directory` in front of every relative path in `data`, which is not validated yet."""
    for field in PATH_FIELDS:
        *parents, last = field.split(".")
        part: Any = data
        for name in parents:
            part = part.get(name) if isinstance(part, dict) else None
        value = part.get(last) if isinstance(part, dict) else None
        if isinstance(value, str):
            part[last] = str(directory / value)
        elif isinstance(value, list):
            part[last] = [
                str(directory / item) if isinstance(item, str) else item for item in value
            ]


def _apply(data: dict[str, Any], override: Override) -> None:
    *parents, last = override.path
    for index, name in enumerate(parents):
        child = data.setdefault(name, {})
        if not isinstance(child, dict):
            field = ".".join(override.path[: index + 1])
            raise RecipeError(f"{override.source}: {field} is {child!r}, it has no parts")
        data = child
    data[last] = override.value


def _refuse_duplicates(path: Path, node: yaml.Node, visited: set[int]) -> None:
    """PyYAML keeps the last of two equal keys without a word; here it is a mistake."""
    if id(node) in visited:  # an alias; it may even contain itself
        return
    visited.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_duplicates(path, item, visited)
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            mark = key.start_mark
            if key.value in seen:
                raise RecipeError(
                    f"{path}:{mark.line + 1}:{mark.column + 1}: {key.value}: given twice,"
                    f" first in line {seen[key.value]}"
                )
            seen[key.value] = mark.line + 1
            _refuse_duplicates(path, value, visited)


def _expectation(detail: ErrorDetails) -> str:
    if detail["type"] == "missing":
        return "missing"
    if detail["type"] == "extra_forbidden":
        return "unknown field"
    if detail["type"] == "union_tag_invalid":
        return f"{detail['ctx']['tag']!r}, expected one of {', '.join(TARGETS)}"
    if detail["type"] == "model_type":
        return f"{detail['input']!r}, expected fields"
    expected = detail["msg"].removeprefix("Input should be ")
    return f"{detail['input']!r}, expected {expected}"


def _hint(details: Sequence[ErrorDetails]) -> str:
    """Name the field an unknown one was probably meant to be."""
    names = [name for name, _ in leaf_fields()]
    names += {name.split(".", 1)[0] for name in names}
    for detail in details:
        if detail["type"] == "extra_forbidden":
            leaves = {name.rsplit(".", 1)[-1] for name in names}
            close = get_close_matches(str(detail["loc"][-1]), leaves, n=1)
            if close:
                meant = [name for name in names if name.rsplit(".", 1)[-1] == close[0]]
                # Of fields of one name, the one of the section that was written.
                meant.sort(key=lambda name: name.split(".", 1)[0] != detail["loc"][0])
                return f"did you mean {meant[0]}?"
        if detail["type"] == "missing" and detail["loc"] == ("model",):
            return "give the model's directory: `model: DIRECTORY` or --model DIRECTORY"
    return ""


def _problem(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f":{mark.line + 1}:{mark.column + 1}: {error.problem}"
    return f": {error}"


def flag_overrides(flags: Mapping[str, str], values: Mapping[str, Any]) -> list[Override]:
    """Turn the named flags that were given (value not None) into overrides.

    `flags` maps a flag to the recipe field it sets, `values` the same flag to its value.
    """
    return [
        Override(path=tuple(field.split(".")), value=values[flag], source=f"{flag} {values[flag]}")
        for flag, field in flags.items()
        if values[flag] is not None
    ]
