"""Recipes of quantized checkpoints: what is filled in, what runs again, what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from llmc.builders import pipeline
from llmc.checkpoint import Checkpoint
from llmc.errors import UnsupportedError
from llmc.log import NullProgress
from llmc.recipes.loader import Override, load_recipe, parse_set
from llmc.stages import StageResult
from tests.builders.tiny_hf import write_model

TEXT = " ".join(f"w{index * 7 % 64}" for index in range(64))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    sizes = {"hidden_size": 192, "num_attention_heads": 6, "intermediate_size": 256}
    return write_model(tmp_path / "model", torch_dtype="bfloat16", num_hidden_layers=1, **sizes)


def build(model: Path, *settings: str) -> StageResult:
    """Build the checkpoint of `model` beside it."""
    text = f"quantization.calibration.data={model.parent / 'text.txt'}"
    overrides = [Override(path=("model",), value=str(model), source="test")]
    overrides += [parse_set(setting) for setting in ("dtype=bfloat16", text, *settings)]
    (result,) = pipeline.build(
        load_recipe(None, overrides),
        model.parent / "out",
        until="checkpoint",
        progress=NullProgress(),
        report=lambda result: None,
    )
    return result


def quantization(result: StageResult) -> dict[str, object]:
    config = json.loads((result.directory / "config.json").read_text())
    found: dict[str, object] = config["quantization"] | config.get("llmc", {})
    return found


def test_calibration_text_is_part_of_the_key(model: Path) -> None:
    first = build(model, "quantization.algo=FP8")
    assert not first.cached and build(model, "quantization.algo=FP8").cached
    text = model.parent / "text.txt"
    text.rename(model.parent / "moved.txt")
    moved = f"quantization.calibration.data={model.parent / 'moved.txt'}"
    assert build(model, "quantization.algo=FP8", moved).cached
    (model.parent / "moved.txt").write_text(TEXT + " w1 w2 w3")
    assert not build(model, "quantization.algo=FP8", moved).cached
    shorter = "quantization.calibration.max_tokens=16"
    assert not build(model, "quantization.algo=FP8", moved, shorter).cached
    assert sorted(path.name for path in (model.parent / "out").iterdir()) == ["checkpoint"]


def test_calibration_settings_do_not_matter_without_one(model: Path) -> None:
    build(model, "quantization.algo=W8A16")
    assert build(model, "quantization.algo=W8A16", "quantization.calibration.samples=3").cached


def test_group_size_and_layout_are_filled_in(model: Path) -> None:
    awq = quantization(build(model, "quantization.algo=W4A16_AWQ"))
    assert (awq["group_size"], awq.get("layout")) == (64, None)  # 128 does not divide 192
    gptq = quantization(build(model, "quantization.algo=W4A16_GPTQ"))
    assert (gptq["group_size"], gptq["layout"], gptq["has_zero_point"]) == (64, "sm80", True)


def test_alpha_is_written_down(model: Path) -> None:
    algo = "quantization.algo=W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN"
    first = build(model, algo, "quantization.alpha=0.75")
    assert quantization(first)["smoothquant_val"] == 0.75
    assert not build(model, algo, "quantization.alpha=0.5").cached
    searched = build(model, algo)
    assert not searched.cached and quantization(searched)["smoothquant_val"] == 0.5


@pytest.mark.parametrize(("clamp", "bound"), [(None, 3.38e38), (1200, 1200)])
def test_inputs_are_bounded_only_when_asked(model: Path, clamp: int | None, bound: float) -> None:
    settings = [] if clamp is None else [f"quantization.clamp={clamp}"]
    done = build(model, "quantization.algo=FP8_PER_CHANNEL_PER_TOKEN", *settings)
    checkpoint = Checkpoint.open(done.directory)
    bounds = checkpoint.config.quantization.clamp_val
    assert bounds is not None and bounds == pytest.approx((-bound, bound), rel=0.01)
    stored = checkpoint.rank(0).read("transformer.layers.0.mlp.clamp_val")
    np.testing.assert_allclose(stored, bounds, rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "reasons"),
    [
        (["algo=W4A16_AWQ", "group_size=128"], ["attention.qkv: 192 columns are not whole groups"]),
        (["algo=W4A16_AWQ", "group_size=32"], ["group_size 32, expected 64 or 128"]),
        (["algo=NVFP4", "kv_cache=INT8"], ["NVFP4 with an INT8 KV cache"]),
        (["algo=FP8", "layout=sm80"], ["layout 'sm80': FP8 is the same for every GPU"]),
        (["algo=FP9", "kv_cache=INT2"], ["quant_algo 'FP9'", "kv_cache_quant_algo 'INT2'"]),
    ],
)
def test_every_forbidden_combination_has_its_reason(
    settings: list[str], reasons: list[str], model: Path
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        build(model, *(f"quantization.{setting}" for setting in settings))
    for reason in reasons:
        assert reason in caught.value.message
    assert not (model.parent / "out" / "checkpoint").exists()
