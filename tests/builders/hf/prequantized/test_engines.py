"""Models that are quantized already, from a recipe to the logits of a CPU engine."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from llmc.builders import pipeline
from llmc.errors import UnsupportedError
from llmc.log import NullProgress
from llmc.recipes.loader import Override, load_recipe, parse_set
from llmc.runtime.engine import KvCacheConfig
from llmc.runtime.engines import cpu
from tests.builders.hf.prequantized.test_schemes import CASES
from tests.builders.hf.prequantized.tiny_quantized import make
from tests.builders.hf_models import write_tiny
from tests.runtime import cpu_engines

TOKENS = [3, 17, 39, 0, 22, 5, 31, 8]
LIMITS = ("build.max_num_tokens=64", "build.max_batch_size=4")

ERRORS = {
    # What rounding inputs costs: nothing, to INT8 or FP8 about a percent, to four bits more.
    "compressed-tensors INT4": 1e-3,
    "gptq version 1": 1e-3,
    "awq": 1e-3,
    "compressed-tensors INT8 per token": 0.03,
    "compressed-tensors INT8 static": 0.06,
    "compressed-tensors FP8 static": 0.06,
    "compressed-tensors FP8 per channel": 0.06,
    "modelopt NVFP4": 0.25,
}


def build(model: Path, output: Path, *settings: str) -> Path:
    overrides = [Override(path=("model",), value=str(model), source="test")]
    overrides += [parse_set(setting) for setting in (*LIMITS, *settings)]
    result = pipeline.build(
        load_recipe(None, overrides),
        output,
        until="engine",
        progress=NullProgress(),
        report=lambda stage: None,
    )[-1]
    return result.directory


def logits(engine_dir: Path) -> npt.NDArray[np.float32]:
    """Return logits [tokens, vocab] of TOKENS."""
    engine = cpu.load(engine_dir, kv=KvCacheConfig(max_tokens=64), threads=2)
    try:
        (found,) = cpu_engines.run(engine, [TOKENS], [[len(TOKENS)]])
    finally:
        engine.close()
    return found


@pytest.mark.parametrize("name", ERRORS)
def test_an_engine_computes_what_the_weights_stand_for(name: str, tmp_path: Path) -> None:
    settings, quantize, _, _ = CASES[name]
    config, tensors, weights = make(quantize(), settings)
    model = write_tiny(tmp_path / "quantized", config, tensors)
    found = logits(build(model, tmp_path / "out"))
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    plain["torch_dtype"] = "float32"
    reference = write_tiny(tmp_path / "plain", plain, weights)
    wanted = logits(build(reference, tmp_path / "plain-out"))
    error = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
    assert error < ERRORS[name]


@pytest.mark.parametrize(
    "setting", ["algo=W4A16_AWQ", "algo=FP8", "kv_cache=INT8", "exclude=[lm_head]"]
)
def test_a_recipe_cannot_ask_for_another(setting: str, tmp_path: Path) -> None:
    settings, quantize, _, _ = CASES["compressed-tensors FP8 static"]
    config, tensors, _ = make(quantize(), settings)
    model = write_tiny(tmp_path / "model", config, tensors)
    with pytest.raises(UnsupportedError) as caught:
        build(model, tmp_path / "out", f"quantization.{setting}")
    assert "the model is quantized already" in str([caught.value.message, *caught.value.reasons])
