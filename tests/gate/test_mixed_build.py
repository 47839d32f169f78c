"""Quantization chosen by layer, from recipe to verdict, on engines of a tiny model."""

import json
import shutil
from pathlib import Path

import pytest

from llmc import artifacts
from llmc.builders import pipeline
from llmc.builders.quantize.mixed import SENSITIVITIES_NAME, Sensitivities, choose_options
from llmc.checkpoint import Checkpoint
from llmc.errors import UnsupportedError
from llmc.gate.record import require_passed
from llmc.gate.reference import read_config
from llmc.gate.sensitivity import read_sensitivity
from llmc.log import NullProgress
from llmc.recipes.schema import Recipe
from llmc.stages import StageResult
from tests.builders.tiny_hf import write_model
from tests.gate import built

TARGET = 8.01
"""What FP8 takes everywhere, scales included."""


def make_recipe(directory: Path, *settings: str) -> Recipe:
    text = f"quantization.calibration.data={built.write_text(directory / 'calibration.txt')}"
    return built.recipe(directory / "model", "dtype=bfloat16", text, *settings)


def auto(directory: Path, *settings: str) -> Recipe:
    return make_recipe(directory, "quantization.algo=auto", *settings)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with a model and its gated build `out` of at most TARGET bits; not to change."""
    directory = tmp_path_factory.mktemp("mixed")
    write_model(directory / "model", hidden_size=128, intermediate_size=256, num_hidden_layers=3)
    recipe = auto(directory, f"quantization.target_bits={TARGET}")
    built.build(recipe, directory / "out")
    built.gate(recipe, directory / "out")
    return directory


def test_engine_passes_and_the_report_shows_its_layers(mixed: Path) -> None:
    gate = require_passed(mixed / "out" / "engine")
    assert gate.measurement.quant_algo == "MIXED_PRECISION"
    report = (mixed / "out" / "gate" / "report.md").read_text()
    assert "## Layer sensitivity" in report and "(kl-by-layer.svg)" in report
    chart = (mixed / "out" / "gate" / "kl-by-layer.svg").read_text()
    assert "attention W4A16_AWQ" in chart and "mlp FP8" in chart


def test_checkpoint_has_what_was_chosen_in_the_budget(mixed: Path) -> None:
    found = Sensitivities.read(mixed / "out" / "sensitivity")
    chosen = choose_options(found.groups, TARGET)
    assert chosen is not None and len({option.algo for option in chosen}) > 1
    wanted = {
        module: option.algo
        for group, option in zip(found.groups, chosen, strict=True)
        for module in group.modules
        if option.algo is not None
    }
    layers = json.loads((mixed / "out" / "checkpoint" / "quant_cfg.json").read_text())
    assert layers["quant_algo"] == "MIXED_PRECISION"
    stored = {name: one["quant_algo"] for name, one in layers["quantized_layers"].items()}
    assert stored == wanted
    infos = Checkpoint.open(mixed / "out" / "checkpoint").rank(0).infos
    linear = [info for name, info in infos.items() if ".attention." in name or ".mlp." in name]
    num_weights = sum(group.num_weights for group in found.groups)
    assert 8 * sum(info.num_bytes for info in linear) <= TARGET * num_weights


def test_mixture_is_nearer_than_one_format_of_as_many_bits(mixed: Path) -> None:
    recipe = make_recipe(mixed, "quantization.algo=FP8")
    built.build(recipe, mixed / "fp8")
    uniform = built.gate(recipe, mixed / "fp8").gate
    chosen = require_passed(mixed / "out" / "engine")

    for one, other in zip(chosen.measurement.texts, uniform.measurement.texts, strict=True):
        assert one.divergence is not None and other.divergence is not None
        assert one.divergence.mean_kl < other.divergence.mean_kl
    found = Sensitivities.read(mixed / "out" / "sensitivity")
    best = choose_options(found.groups, TARGET)
    fp8 = [option for group in found.groups for option in group.options if option.algo == "FP8"]
    assert best is not None
    assert sum(option.kl for option in best) < sum(option.kl for option in fp8)
    assert sum(option.bits for option in best) <= sum(option.bits for option in fp8) * 1.001


@pytest.mark.parametrize("changed", ["", "sensitivity", "checkpoint"])
def test_only_what_it_was_chosen_by_is_reported(mixed: Path, tmp_path: Path, changed: str) -> None:
    """A number edited in place, and whole directories of another build."""
    out = tmp_path / "out"
    shutil.copytree(mixed / "out", out)
    if changed == "sensitivity":
        file = out / "sensitivity" / SENSITIVITIES_NAME
        file.write_text(file.read_text().replace('"num_tokens": ', '"num_tokens": 1'))
    if changed == "checkpoint":
        manifest = artifacts.read_manifest(out / "checkpoint")
        inputs = manifest.inputs | {"sensitivity": "0" * 64}
        text = manifest.model_copy(update={"inputs": inputs}).model_dump_json()
        (out / "checkpoint" / artifacts.MANIFEST_NAME).write_text(text)
    quantization = read_config(out / "engine").quantization
    found = read_sensitivity(out / "engine", out, quantization)
    assert (found is None) == bool(changed)


def test_another_budget_only_chooses_anew(mixed: Path) -> None:
    results: list[StageResult] = []
    pipeline.build(
        auto(mixed, "quantization.target_bits=5"),
        mixed / "out",
        until="checkpoint",
        progress=NullProgress(),
        report=results.append,
    )
    assert [(one.manifest.stage, one.cached) for one in results] == [
        ("sensitivity", True),
        ("checkpoint", False),
    ]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ((), "target_bits is missing"),
        (("quantization.target_bits=4",), "expected at least 4.333"),
        (("quantization.target_bits=16",), "expected less than the 16 of"),
        (
            ("quantization.target_bits=8", "quantization.candidates=[FP8_PER_CHANNEL_PER_TOKEN]"),
            "FP8_PER_CHANNEL_PER_TOKEN cannot be chosen by module",
        ),
        (("quantization.target_bits=8", "quantization.candidates=[FP9]"), "'FP9'"),
        (("quantization.target_bits=8", "mapping.pp=3"), "pp_size 3, expected 1"),
        (("quantization.target_bits=8", "quantization.algo=FP8"), "target_bits with algo FP8"),
    ],
)
def test_what_cannot_be_is_said_first(
    mixed: Path, tmp_path: Path, settings: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(UnsupportedError) as raised:
        built.build(auto(mixed, *settings), tmp_path / "out")
    assert any(reason in one for one in raised.value.reasons), raised.value.reasons
    assert not (tmp_path / "out").exists()
