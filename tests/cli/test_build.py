"""`llmc build` end to end on a tiny model: flags, cache, JSON, refusals."""

import json
from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path

import pytest
import yaml

from llmc.cli import build as command
from llmc.errors import RecipeError
from llmc.recipes import PRESETS
from llmc.recipes.loader import leaf_fields
from tests.builders.tiny_hf import flip_weight_byte, write_model
from tests.cli.run import Done, llmc

Run = Callable[..., Done]

RUN_OPTIONS = {
    *("source", "output", "until", "settings", "workers", "force", "as_json"),
    *("allow_ungated", "cache"),
}
"""Parameters that say how to run; they do not change what is built."""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setenv("LLMC_LOG", "warning")
    monkeypatch.setenv("LLMC_CACHE", str(tmp_path / "cache"))
    return partial(llmc, capsys=capsys, monkeypatch=monkeypatch)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def states(done: Done) -> list[str]:
    assert done.code == 0, done.stderr
    return ["cached" if line.endswith("  cached") else "made" for line in done.stdout.splitlines()]


def test_builds_everything_then_reuses_it(run: Run, model: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    first = run("build", model, "-o", output, "--quant", "W8A16")
    assert states(first) == ["made"] * 4
    assert sorted(path.name for path in output.iterdir()) == [
        *("checkpoint", "engine", "gate", "model_repo", "recipe.yaml")
    ]
    assert states(run("build", model, "-o", output, "--quant", "W8A16")) == ["cached"] * 4
    # The resolved recipe is a recipe: it builds the same.
    assert states(run("build", output / "recipe.yaml", "-o", output)) == ["cached"] * 4
    flip_weight_byte(model)
    assert states(run("build", output / "recipe.yaml", "-o", output)) == ["made"] * 4
    assert states(run("build", output / "recipe.yaml", "-o", output, "--force")) == ["made"] * 4


def test_serve_settings_only_touch_the_repository(run: Run, model: Path, tmp_path: Path) -> None:
    run("build", model, "-o", tmp_path / "out")
    done = run("build", model, "-o", tmp_path / "out", "--set", "serve.bls_instance_count=2")
    assert states(done) == ["cached", "cached", "cached", "made"]


@pytest.mark.parametrize(
    ("until", "made"), [("checkpoint", 1), ("engine", 2), ("gate", 3), ("repo", 4)], ids=str
)
def test_until_stops_there(run: Run, model: Path, tmp_path: Path, until: str, made: int) -> None:
    done = run("build", model, "-o", tmp_path / "out", "--until", until)
    assert states(done) == ["made"] * made


def test_json_is_all_there_is_on_stdout(run: Run, model: Path, tmp_path: Path) -> None:
    done = run("build", model, "-o", tmp_path / "out", "--json")
    result = json.loads(done.stdout)
    names = [stage["stage"] for stage in result["stages"]]
    assert names == ["checkpoint", "engine", "gate", "model_repo"]
    assert all(len(stage["key"]) == 64 and stage["size_bytes"] > 0 for stage in result["stages"])
    assert "rank0.engine" in result["stages"][1]["files"]
    # The model's own dtype is its own reference: only numbers are demanded.
    assert result["gate"]["verdict"] == "passed"
    assert {check["metric"] for check in result["gate"]["checks"]} == {
        *("nonfinite_tokens", "flat_tokens")
    }
    assert json.loads(run(*until_engine(model, tmp_path)).stdout)["gate"] is None


def until_engine(model: Path, tmp_path: Path) -> tuple[str | Path, ...]:
    return ("build", model, "-o", tmp_path / "out", "--json", "--until", "engine")


def test_flag_wins_over_set_over_recipe(run: Run, model: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: model\ndtype: float32\nmapping: {pp: 1, tp: 4}\n")
    options = ("--set", "dtype=bfloat16", "--set", "mapping.tp=1", "--dtype", "float16")
    done = run("build", recipe, "-o", tmp_path / "out", "--until", "checkpoint", *options)
    assert done.code == 0, done.stderr
    resolved = yaml.safe_load((tmp_path / "out" / "recipe.yaml").read_text())
    assert (resolved["dtype"], resolved["mapping"]["tp"]) == ("float16", 1)
    assert resolved["model"] == str(model)


def test_own_recipe_in_the_output_keeps_its_comments(run: Run, model: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "out" / "recipe.yaml"
    recipe.parent.mkdir()
    recipe.write_text("model: ../model  # mine\n")
    options = ("-o", tmp_path / "out", "--until", "checkpoint")
    assert run("build", recipe, *options).code == 0
    assert "# mine" in recipe.read_text()
    assert run("build", recipe, *options, "--dtype", "float16").code == 0
    assert yaml.safe_load(recipe.read_text())["dtype"] == "float16"


def test_files_of_the_user_are_not_replaced(run: Run, model: Path, tmp_path: Path) -> None:
    mine = tmp_path / "out" / "engine" / "notes.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    done = run("build", model, "-o", tmp_path / "out")
    assert done.code == 6
    assert f"error: {mine.parent}: exists and was not made by llmc" in done.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["engine"]
    assert mine.read_text() == "mine"


def test_preset_needs_a_model(run: Run, model: Path, tmp_path: Path) -> None:
    done = run("build", "cpu-fp32", "-o", tmp_path / "out")
    assert done.code == 2
    assert "--model DIRECTORY" in done.stderr
    done = run("build", "cpu-fp32", "--model", model, "-o", tmp_path / "out", "--until", "engine")
    assert done.code == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--dtype", "half"), 2, "error: --dtype half: dtype: 'half', expected 'float32'"),
        (("--tp", "0"), 2, "error: --tp 0: mapping.tp: 0, expected greater than 0"),
        (("--set", "mapping.tq=2"), 2, "mapping.tq: unknown field"),
        (("--target", "gpu"), 2, "target.kind: 'gpu', expected one of cpu, tensorrt-rtx"),
        (("--quant", "INT3"), 4, "'INT3', expected one of "),
        (("--tp", "3"), 4, "valid tp_size: 1, 2, 4"),
        (("--workers", "0"), 2, "Invalid value for '--workers'"),
    ],
)
def test_refusals_name_the_flag_and_what_works(
    run: Run, model: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = run("build", model, "-o", tmp_path / "out", *arguments)
    assert (done.code, done.stdout) == (code, "")
    assert said in done.stderr
    assert not list((tmp_path / "out").glob("*"))


def test_what_is_neither_model_nor_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="not a preset") as caught:
        command.read_source("HuggingFaceTB/SmolLM2", [], dict.fromkeys(command.FLAGS))
    assert "hub id" in caught.value.hint
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF")
    with pytest.raises(RecipeError, match="not a recipe") as caught:
        command.read_source(str(gguf), [], dict.fromkeys(command.FLAGS))
    assert "import-gguf" in caught.value.hint


def test_every_flag_has_a_field_and_every_field_a_flag() -> None:
    """--set reaches every field (tests/recipes); a named flag is one of FLAGS or a run option."""
    fields = dict(leaf_fields())
    assert set(command.FLAGS.values()) <= fields.keys()
    parameters = set(signature(command.build).parameters) - RUN_OPTIONS
    assert {f"--{name.replace('_', '-')}" for name in parameters} == set(command.FLAGS)


def test_presets_are_named_in_the_help() -> None:
    argument = signature(command.build, eval_str=True).parameters["source"].annotation
    assert all(preset in argument.__metadata__[0].help for preset in PRESETS)
