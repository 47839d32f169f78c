"""Tiny random engines, built as `llmc build` does, and texts their tokenizer knows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc import artifacts
from llmc.builders import pipeline
from llmc.gate.record import GATE_NAME
from llmc.gate.step import GateResult, gate_build
from llmc.log import NullProgress
from llmc.plugins.cpu_file import EngineFile
from llmc.recipes.loader import Override, load_recipe, parse_set
from llmc.recipes.schema import Recipe
from llmc.weights import SafetensorsFile, SafetensorsWriter

FloatArray = npt.NDArray[np.float32]


def write_text(path: Path, *, seed: int = 0, num_words: int = 200) -> Path:
    """Write random words of the tiny model's vocabulary."""
    words = np.random.default_rng(seed).integers(0, 64, num_words)
    path.write_text(" ".join(f"w{word}" for word in words))
    return path


def recipe(model: Path, *settings: str) -> Recipe:
    """Return a recipe for `model` that measures on two texts written beside it."""
    texts = [write_text(model.parent / f"{name}.txt", seed=len(name)) for name in ("prose", "code")]
    overrides = [
        Override(path=("model",), value=str(model), source="test"),
        Override(path=("gate", "texts"), value=list(map(str, texts)), source="test"),
    ]
    return load_recipe(None, [*overrides, *map(parse_set, settings)])


def build(recipe: Recipe, output: Path) -> Path:
    """Build and return `output`/engine."""
    pipeline.build(
        recipe, output, until="engine", progress=NullProgress(), report=lambda result: None
    )
    return output / "engine"


def gate(recipe: Recipe, output: Path, *, force: bool = False) -> GateResult:
    """Gate `output`/engine; references are cached beside the output."""
    return gate_build(
        recipe,
        output,
        cache=output.parent / "cache",
        workers=1,
        progress=NullProgress(),
        force=force,
    )


def enlarge_channels(model: Path, *, step: int, factor: float) -> None:
    """Make every `step`-th input channel of the MLPs `factor` times as large, by their norms."""
    path = model / "model.safetensors"
    old = SafetensorsFile.open(path)
    values = {name: old.read(name).copy() for name in old.infos}
    old.close()
    path.unlink()
    with SafetensorsWriter(path, list(old.infos.values()), {"format": "pt"}) as writer:
        for name, value in values.items():
            if name.endswith("post_attention_layernorm.weight"):
                value[::step] *= np.float32(factor)
            writer.write(name, value)


def scale_engine(engine: Path, module: str, factor: float) -> None:
    """Multiply the scales of one module, as a mistake in quantizing it would."""
    changed = change_engine(engine, module, "scale", lambda values: values * np.float32(factor))
    assert changed == 1


def drop_prequant_scales(engine: Path) -> None:
    """Let every module's inputs in as they are, though its weights were scaled for other ones."""
    assert change_engine(engine, "", ".input.factor", np.ones_like)


def change_engine(
    engine: Path, module: str, suffix: str, change: Callable[[FloatArray], FloatArray]
) -> int:
    """Change the float32 tensors of an engine that `module` and `suffix` name; return how many.

    The manifest is made anew, gate.json is left: to everyone but the gate this engine is intact.
    """
    path = engine / "rank0.engine"
    tensors: dict[str, Any] = dict(EngineFile.open(path).tensors)
    chosen = [tensors[name] for name in tensors if module in name and name.endswith(suffix)]
    data = bytearray(path.read_bytes())
    for tensor in chosen:
        assert tensor.dtype == "float32"
        place = slice(tensor.offset, tensor.offset + tensor.num_bytes)
        data[place] = change(np.frombuffer(bytes(data[place]), np.float32)).tobytes()
    path.write_bytes(data)
    verdict = (engine / GATE_NAME).read_bytes()
    (engine / GATE_NAME).unlink()
    old = artifacts.read_manifest(engine)
    artifacts.write_manifest(
        engine,
        stage="engine",
        inputs=old.inputs,
        recipe=old.recipe,
        tools=old.tools,
        target=old.target,
    )
    (engine / GATE_NAME).write_bytes(verdict)
    return len(chosen)
