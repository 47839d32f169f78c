"""Recipes load with typed values, or fail naming file, line and column of every mistake."""

from pathlib import Path

import pytest

from llmc.errors import RecipeError
from llmc.recipes import PRESETS
from llmc.recipes.loader import (
    Override,
    dump_recipe,
    flag_overrides,
    leaf_fields,
    load_recipe,
    parse_set,
    preset_path,
)
from llmc.targets import TARGETS

MODEL = Override(path=("model",), value="model", source="--model model")


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_validates(name: str) -> None:
    recipe = load_recipe(preset_path(name), [MODEL])
    assert recipe.target.kind == "cpu"


def test_file_then_set_then_flag(tmp_path: Path) -> None:
    path = write(tmp_path, "model: m\nmapping: {tp: 2, pp: 3}\nbuild: {max_batch_size: 4}\n")
    recipe = load_recipe(
        path,
        [
            parse_set("mapping.tp=4"),
            parse_set("build.max_batch_size=8"),
            *flag_overrides(
                {"--tp": "mapping.tp", "--pp": "mapping.pp"}, {"--tp": 8, "--pp": None}
            ),
        ],
    )
    assert (recipe.mapping.tp, recipe.mapping.pp, recipe.build.max_batch_size) == (8, 3, 8)


def test_model_is_relative_to_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "model: m\n")
    monkeypatch.chdir(Path(__file__).parent)
    assert load_recipe(path).model == tmp_path / "m"
    assert load_recipe(path, [MODEL]).model == Path(__file__).parent / "model"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: m\ndtype: fp16\n", "2:8: dtype: 'fp16', expected 'float32', 'float16' or 'bf"),
        ("model: m\nbuild:\n  max_batch_size: -3\n", "3:19: build.max_batch_size: -3, expected gr"),
        ("model: m\nquantization: {excludes: [a]}\n", "2:16: quantization.excludes: unknown field"),
        ("model: m\nbuild:\n", "2:7: build: None, expected fields"),
        ("model: m\nmapping: {tp: true}\n", "2:15: mapping.tp: True, expected a valid integer"),
        ("model: m\nmapping: {tp: '2'}\n", "2:15: mapping.tp: '2', expected a valid integer"),
        ("model: m\nserve: {decoupled: 1}\n", "2:20: serve.decoupled: 1, expected a valid bool"),
        ("model: m\nquantization: {exclude: [a, 3]}\n", "2:29: quantization.exclude.1: 3, expec"),
        ("model: m\ntarget: {kind: gpu}\n", "2:16: target.kind: 'gpu', expected one of"),
        ("dtype: float32\nmodel: a\nmodel: b\n", "3:1: model: given twice, first in line 2"),
        ("model: m\nbuild: &x [*x]\n", "2:8: build:"),
        ("model: [a\n", "2:1: expected ',' or ']'"),
        ("model: m\n\tdtype: float32\n", "2:1: found character '\\t'"),
        ("- model\n", " a list or a value, expected fields"),
    ],
)
def test_mistake_is_named_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert caught.value.message.startswith(f"{path}:{said}")
    assert caught.value.message.count("\n") == 0


def test_all_mistakes_at_once_and_the_flag_that_made_one(tmp_path: Path) -> None:
    path = write(tmp_path, "model: m\ndtype: half\nbuild: {max_num_tokens: 0}\n")
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, [parse_set("mapping.tp=two")])
    lines = caught.value.message.splitlines()
    assert len(lines) == 3
    assert "--set mapping.tp=two: mapping.tp: 'two', expected a valid integer" in lines[1]
    assert lines[2].startswith(f"{path}:3:25: build.max_num_tokens: 0")


def test_unknown_field_gets_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(tmp_path, "model: m\nquantization: {algorithm: W8A16}\n"))
    assert caught.value.hint == "did you mean quantization.algo?"


def test_the_hint_stays_in_the_section_that_was_written(tmp_path: Path) -> None:
    for section in ("build", "serve"):
        path = tmp_path / "recipe.yaml"
        path.write_text(f"model: .\n{section}: {{max_batch: 3}}\n")
        with pytest.raises(RecipeError) as caught:
            load_recipe(path)
        assert caught.value.hint == f"did you mean {section}.max_batch_size?"


def test_missing_model_says_how_to_give_it() -> None:
    with pytest.raises(RecipeError, match="model: missing") as caught:
        load_recipe(None)
    assert "--model" in caught.value.hint


@pytest.mark.parametrize("text", ["tp", "=3", "mapping.=3", "mapping.tp=[1"])
def test_malformed_set_is_refused(text: str) -> None:
    with pytest.raises(RecipeError, match="--set"):
        parse_set(text)


def test_set_below_a_value_is_refused() -> None:
    with pytest.raises(RecipeError, match="dtype is 'float16', it has no parts"):
        load_recipe(None, [MODEL, parse_set("dtype=float16"), parse_set("dtype.kind=x")])


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="No such file"):
        load_recipe(tmp_path / "absent.yaml")


def test_resolved_recipe_loads_back_equal(tmp_path: Path) -> None:
    recipe = load_recipe(
        None,
        [MODEL, parse_set("quantization.exclude=[lm_head, '*.proj']"), parse_set("mapping.tp=2")],
    )
    path = write(tmp_path, dump_recipe(recipe, "made by a test"))
    assert load_recipe(path) == recipe


def test_every_field_can_be_set_and_is_described() -> None:
    fields = dict(leaf_fields())
    assert len(fields) > 30
    found: set[str] = set()
    for kind in TARGETS:
        variant = parse_set(f"target.kind={kind}")
        default = load_recipe(None, [MODEL, variant])
        for field, description in fields.items():
            assert description.endswith("."), field
            value: object = default
            for name in field.split("."):
                value = getattr(value, name, ...)
            if value is ...:
                continue  # a field of another variant
            override = Override(path=tuple(field.split(".")), value=value, source="test")
            assert load_recipe(None, [MODEL, variant, override]) == default
            found.add(field)
    assert found == fields.keys()
