"""The gate on real engines of a tiny model: what passes, what fails, what is measured again."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from llmc import artifacts
from llmc.errors import CheckpointError, GateError, UnsupportedError
from llmc.gate import reference as references
from llmc.gate.record import GATE_NAME, require_passed
from llmc.gate.step import failed_kept_aside
from llmc.gate.thresholds import default_thresholds
from llmc.recipes.schema import Recipe
from tests.builders.tiny_hf import flip_weight_byte, write_model
from tests.gate import built


@pytest.fixture(scope="module")
def w8a16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with a model, its W8A16 build `out` and the reference in `cache`; not to change."""
    directory = tmp_path_factory.mktemp("w8a16")
    recipe = built.recipe(write_model(directory / "model"), "quantization.algo=W8A16")
    built.build(recipe, directory / "out")
    built.gate(recipe, directory / "out")
    return directory


@pytest.fixture
def own(w8a16: Path, tmp_path: Path) -> Path:
    """A copy of `w8a16`."""
    return shutil.copytree(w8a16, tmp_path / "own")


def w8a16_recipe(directory: Path, *settings: str) -> Recipe:
    return built.recipe(directory / "model", "quantization.algo=W8A16", *settings)


def test_good_engine_passes_and_says_why(w8a16: Path) -> None:
    gate = require_passed(w8a16 / "out" / "engine")
    assert gate.verdict == "passed"
    engine = artifacts.read_manifest(w8a16 / "out" / "engine")
    assert gate.measurement.engine == engine.content_digest
    assert [text.name for text in gate.measurement.texts] == ["prose", "code"]
    assert (gate.measurement.quant_algo, gate.measurement.window_tokens) == ("W8A16", 128)
    for text in gate.measurement.texts:
        assert text.num_tokens == 200 and text.divergence is not None
        # Eight bits of a random model are near, but not nothing.
        assert 1e-7 < text.divergence.mean_kl < 1e-2
        assert 0.9 < text.divergence.top1_agreement <= 1
    names = {path.name for path in (w8a16 / "out" / "gate").iterdir()}
    assert names == {"measurement.json", "manifest.json", "report.md", "kl-by-position.svg"}
    data = json.loads((w8a16 / "out" / "engine" / GATE_NAME).read_text())
    assert {"text", "sha256", "metric", "value", "threshold", "passed"} == data["checks"][0].keys()


@pytest.mark.parametrize("module", ["layers.1.mlp.proj", "layers.0.attention.qkv"])
def test_scales_of_one_layer_times_eight_are_caught(own: Path, module: str) -> None:
    built.scale_engine(own / "out" / "engine", module, 8.0)
    assert artifacts.verify(own / "out" / "engine") == []
    with pytest.raises(GateError, match="not the engine that was gated"):
        require_passed(own / "out" / "engine")
    result = built.gate(w8a16_recipe(own), own / "out")
    assert not result.stage.cached
    assert result.gate.verdict == "failed"
    assert {check.text for check in result.gate.failures} == {"prose", "code"}
    with pytest.raises(GateError, match="prose: mean_kl"):
        require_passed(own / "out" / "engine")


def drop(engine: Path) -> None:
    built.drop_prequant_scales(engine)


def scale(engine: Path) -> None:
    built.scale_engine(engine, "layers.1.mlp.proj", 8.0)


@pytest.fixture(scope="module", params=["W4A16_AWQ", "W8A8_SQ_PER_CHANNEL"])
def sure(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with a gated build `out` of a model with outliers; its recipe is `sure_recipe`."""
    directory = tmp_path_factory.mktemp("sure")
    built.write_sure_model(directory / "model")
    recipe = sure_recipe(directory, request.param)
    built.build(recipe, directory / "out")
    built.gate(recipe, directory / "out")
    (directory / "algo").write_text(request.param)
    return directory


def sure_recipe(directory: Path, algo: str) -> Recipe:
    (directory / "texts").mkdir(exist_ok=True)
    texts = [
        str(built.sure_text(directory / "texts" / f"{name}.txt", seed=len(name)))
        for name in ("prose", "code", "calibration")
    ]
    return built.recipe(
        directory / "model",
        "dtype=bfloat16",
        f"quantization.algo={algo}",
        f"quantization.calibration.data={texts[2]}",
        f"gate.texts=[{texts[0]}, {texts[1]}]",
    )


@pytest.mark.parametrize("break_it", [drop, scale])
def test_broken_quantization_is_caught_by_the_default_limits(
    sure: Path, tmp_path: Path, break_it: Callable[[Path], None]
) -> None:
    """Pre-quant scales dropped: weights are scaled up where inputs are large, inputs no longer
    down. Or the scales of one layer times eight."""
    own = shutil.copytree(sure, tmp_path / "own")
    algo, engine = (own / "algo").read_text(), own / "out" / "engine"
    for text in require_passed(engine).measurement.texts:
        assert text.divergence is not None
        # With room to spare, and not because there is nothing to get wrong.
        assert text.divergence.mean_kl < default_thresholds(algo, None).max_kl / 3
        assert text.divergence.reference_perplexity < 8
    break_it(engine)
    assert artifacts.verify(engine) == []
    result = built.gate(sure_recipe(own, algo), own / "out")
    assert not result.stage.cached and result.gate.verdict == "failed"
    assert {check.text for check in result.gate.failures} == {"prose", "code"}
    with pytest.raises(GateError, match="prose: mean_kl"):
        require_passed(engine)


def test_scales_times_one_are_the_same_engine(own: Path) -> None:
    """The factor 1 changes nothing, so what the test above sees is the scales."""
    built.scale_engine(own / "out" / "engine", "layers.1.mlp.proj", 1.0)
    assert built.gate(w8a16_recipe(own), own / "out").stage.cached


def test_thresholds_of_the_recipe_judge_without_measuring_again(own: Path) -> None:
    strict = built.gate(w8a16_recipe(own, "gate.max_kl=0"), own / "out")
    assert strict.stage.cached
    assert [check.metric for check in strict.gate.failures] == ["mean_kl", "mean_kl"]
    assert "failed" in (own / "out" / "gate" / "report.md").read_text()
    again = built.gate(w8a16_recipe(own, "gate.max_kl=0.5"), own / "out")
    assert again.stage.cached and again.gate.verdict == "passed"
    assert built.gate(w8a16_recipe(own), own / "out", force=True).stage.cached is False


def test_what_is_measured_decides_what_is_measured_again(own: Path) -> None:
    recipe = w8a16_recipe(own)
    built.write_text(own / "code.txt", seed=9)
    changed = built.gate(recipe, own / "out")
    assert not changed.stage.cached
    assert built.gate(recipe, own / "out").stage.cached
    fewer = built.gate(w8a16_recipe(own, "gate.max_tokens=50"), own / "out")
    assert [text.num_tokens for text in fewer.gate.measurement.texts] == [50, 50]


def test_reference_is_made_once_and_again_for_another_model(
    own: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (made,) = (own / "cache" / "references").iterdir()
    before = made.stat().st_ino, artifacts.read_manifest(made)
    assert artifacts.verify(made) == [] and not (made / "build").exists()
    built.gate(w8a16_recipe(own), own / "out", force=True)
    assert (made.stat().st_ino, artifacts.read_manifest(made)) == before
    flip_weight_byte(own / "model")
    built.gate(w8a16_recipe(own), own / "out")
    assert len(list((own / "cache" / "references").iterdir())) == 2


def test_cache_of_references_is_bounded(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = (own / "cache" / "references").iterdir()
    size = artifacts.read_manifest(first).num_bytes
    monkeypatch.setattr(references, "CACHE_BYTES", size + size // 2)
    flip_weight_byte(own / "model")
    built.gate(w8a16_recipe(own), own / "out")
    (second,) = (own / "cache" / "references").iterdir()
    assert second.name != first.name
    monkeypatch.setattr(references, "CACHE_BYTES", size // 2)
    built.gate(w8a16_recipe(own), own / "out", force=True)
    assert list((own / "cache" / "references").iterdir()) == []


def test_float32_is_its_own_reference(tmp_path: Path) -> None:
    recipe = built.recipe(write_model(tmp_path / "model"))
    built.build(recipe, tmp_path / "out")
    gate = built.gate(recipe, tmp_path / "out").gate
    assert gate.verdict == "passed" and gate.measurement.reference is None
    assert {check.metric for check in gate.checks} == {"nonfinite_tokens", "flat_tokens"}
    assert not (tmp_path / "cache").exists()


def test_bfloat16_is_measured_against_float32(own: Path) -> None:
    recipe = built.recipe(own / "model", "dtype=bfloat16")
    built.build(recipe, own / "out")
    gate = built.gate(recipe, own / "out").gate
    assert gate.verdict == "passed"
    assert gate.measurement.reference is not None
    assert gate.measurement.reference.dtype == "float32"
    assert gate.measurement.texts[0].divergence is not None
    assert gate.measurement.texts[0].divergence.mean_kl > 0


def test_model_that_was_quantized_already_stands_alone(
    own: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine is quantized and the recipe did not ask for it: its source was."""
    gate = built.gate(built.recipe(own / "model"), own / "out").gate
    assert gate.measurement.reference is None
    assert "was quantized already" in caplog.text


@pytest.mark.parametrize("place", ["model", "float32", "float32/engine"])
def test_recipe_may_name_a_reference(own: Path, place: str) -> None:
    built.build(built.recipe(own / "model"), own / "float32")
    usual = require_passed(own / "out" / "engine").measurement
    recipe = w8a16_recipe(own, f"gate.reference={own / place}")
    found = built.gate(recipe, own / "out", force=True).gate.measurement
    assert found.reference is not None
    assert found.reference.source.startswith(str(own / place))
    assert found.texts == usual.texts


def test_damaged_reference_is_named(own: Path) -> None:
    other = built.build(built.recipe(own / "model"), own / "float32")
    (other / "rank0.engine").write_bytes(b"")
    with pytest.raises(CheckpointError, match="rank0.engine: 0 bytes"):
        built.gate(w8a16_recipe(own, f"gate.reference={other}"), own / "out")
    with pytest.raises(CheckpointError, match="expected an engine or a Hugging Face model"):
        built.gate(w8a16_recipe(own, f"gate.reference={own}"), own / "out")


def test_engine_larger_than_memory_is_refused(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        available = 1000

    monkeypatch.setattr("psutil.virtual_memory", Memory)
    with pytest.raises(UnsupportedError, match="of memory are free") as caught:
        built.gate(w8a16_recipe(own), own / "out", force=True)
    assert "gate.reference_dtype" in caught.value.hint


def test_failed_engine_is_kept_aside_and_taken_back(own: Path) -> None:
    output = own / "out"
    with failed_kept_aside(output):
        built.gate(w8a16_recipe(own, "gate.max_kl=0"), output)
    assert not (output / "engine").exists() and (output / "engine.failed" / GATE_NAME).is_file()
    with failed_kept_aside(output):
        assert (output / "engine").is_dir() and not (output / "engine.failed").exists()
        assert built.gate(w8a16_recipe(own), output).gate.verdict == "passed"
    assert (output / "engine").is_dir() and not (output / "engine.failed").exists()
    with failed_kept_aside(output, allow_ungated=True):
        built.gate(w8a16_recipe(own, "gate.max_kl=0"), output)
    assert (output / "engine").is_dir()


def test_failed_engine_stays_aside_when_its_build_breaks(own: Path) -> None:
    output = own / "out"
    built.gate(w8a16_recipe(own, "gate.max_kl=0"), output)
    with pytest.raises(CheckpointError), failed_kept_aside(output):
        raise CheckpointError("the model is damaged")
    assert not (output / "engine").exists() and (output / "engine.failed").is_dir()
