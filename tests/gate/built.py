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
from tests.builders.tiny_hf import write_model

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


def write_sure_model(directory: Path) -> Path:
    """Write a tiny model that is sure of its predictions and has outliers, as real models do.

    After w<n> it expects w<7 n + 3>: the head looks for what the embedding says, among what random
    layers add, which is about as much. Some of the MLPs' input channels are 20 times as large.
    `sure_text` writes what it knows.
    """
    write_model(directory, hidden_size=128, intermediate_size=128)
    path = directory / "model.safetensors"
    old = SafetensorsFile.open(path)
    values = {name: old.read(name).copy() for name in old.infos}
    old.close()
    path.unlink()
    embedding = values["model.embed_tokens.weight"]
    values["lm_head.weight"][_following(np.arange(64))] = 0.6 * embedding
    embedding *= np.float32(20)
    for name, value in values.items():
        if name.endswith("post_attention_layernorm.weight"):
            value[::64] *= np.float32(20)
        elif name.endswith("down_proj.weight"):
            value *= np.float32(0.25)
    with SafetensorsWriter(path, list(old.infos.values()), {"format": "pt"}) as writer:
        for name, value in values.items():
            writer.write(name, value)
    return directory


def sure_text(path: Path, *, seed: int, num_words: int = 200) -> Path:
    """Write words that follow each other as `write_sure_model` expects, but for every fifth."""
    generator, word, words = np.random.default_rng(seed), 0, []
    for place in range(num_words):
        word = int(generator.integers(64)) if place % 5 == 0 else int(_following(np.array(word)))
        words.append(f"w{word}")
    path.write_text(" ".join(words))
    return path


def _following(word: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return (7 * word + 3) % 64


def scale_engine(engine: Path, module: str, factor: float) -> None:
    """Multiply the scales of one module, as a mistake in quantizing it would."""
    changed = change_engine(
        engine, module, (".scale", ".groups"), lambda values: values * np.float32(factor)
    )
    assert changed == 1


def drop_prequant_scales(engine: Path) -> None:
    """Let every module's inputs in as they are, though its weights were scaled for other ones."""
    assert change_engine(engine, "", (".input.factor",), np.ones_like)


def change_engine(
    engine: Path, module: str, ends: tuple[str, ...], change: Callable[[FloatArray], FloatArray]
) -> int:
    """Change the float32 tensors of an engine that `module` and `ends` name; return how many.

    The manifest is made anew, gate.json is left: to everyone but the gate this engine is intact.
    """
    path = engine / "rank0.engine"
    tensors: dict[str, Any] = dict(EngineFile.open(path).tensors)
    chosen = [tensors[name] for name in tensors if module in name and name.endswith(ends)]
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
