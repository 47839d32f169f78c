"""Paths in a recipe are relative to its directory, those of the command line to the working one."""

from pathlib import Path

import pytest

from llmc.errors import RecipeError
from llmc.recipes.loader import PATH_FIELDS, leaf_fields, load_recipe, parse_set


def test_each_path_is_relative_to_what_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "sub" / "recipe.yaml"
    recipe.parent.mkdir()
    recipe.write_text("model: ../m\ngate: {texts: [a.txt, /abs/b.txt], reference: ref}\n")
    monkeypatch.chdir(tmp_path)
    loaded = load_recipe(Path("sub/recipe.yaml"))
    assert loaded.model == tmp_path / "sub/../m"
    assert loaded.gate.texts == (tmp_path / "sub/a.txt", Path("/abs/b.txt"))
    assert loaded.gate.reference == tmp_path / "sub/ref"
    loaded = load_recipe(Path("sub/recipe.yaml"), [parse_set("gate.texts=[c.txt]")])
    assert loaded.gate.texts == (tmp_path / "c.txt",)


def test_path_fields_exist() -> None:
    assert set(PATH_FIELDS) <= dict(leaf_fields()).keys()


@pytest.mark.parametrize("setting", ["gate.texts=[3]", "gate.texts=3", "gate=3", "gate.texts=a"])
def test_what_is_no_path_is_refused(setting: str) -> None:
    with pytest.raises(RecipeError, match="gate"):
        load_recipe(None, [parse_set("model=m"), parse_set(setting)])
