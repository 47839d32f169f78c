"""What an engine is compared with: the same model, unquantized, or another engine.

The unquantized engine of a model is made once, in the cache, whatever is built from that model: its
window is the gate's, not the build's. The cache is bounded: what was not used for longest goes.
"""

import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from llmc import artifacts
from llmc.builders import pipeline
from llmc.checkpoint import Checkpoint, CheckpointConfig
from llmc.errors import CheckpointError, UnsupportedError
from llmc.gate.measure import STEP_TOKENS, WINDOW_TOKENS
from llmc.gate.ranks import load_ranks
from llmc.gate.record import ReferenceFacts
from llmc.gate.stand_in import checkpoint_behind
from llmc.log import Progress
from llmc.recipes.schema import GateRecipe, Recipe
from llmc.runtime.engine import Engine, KvCacheConfig, load_engine, read_engine_config
from llmc.runtime.rank_files import read_mapping
from llmc.stages import exclusive, run_stage, tool_version

log = logging.getLogger(__name__)

CACHE_BYTES = 16 * 2**30
"""Most that references may take when none is in use."""

_LARGEST_BLOCK = 128
_COMPILER_ROOMS = ("builders", "plugins", "quant", "checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """An engine to compare with. `open` makes it first when need be, and gives it to the caller."""

    facts: ReferenceFacts
    open: Callable[[], Engine]


def choose_reference(
    engine_dir: Path, recipe: Recipe, *, cache: Path, progress: Progress, workers: int
) -> Reference | None:
    """Return what `engine_dir`, built by `recipe`, is measured against, None when it stands alone.

    Alone stand an engine that is its own reference and one of a model that was quantized before
    it came here, unless the recipe names a reference.
    """
    gate = recipe.gate
    config = read_config(engine_dir)
    if gate.reference is not None:
        return find_reference(gate.reference, config, gate, cache, progress, workers)
    quantization = config.quantization
    is_quantized = quantization.quant_algo or quantization.kv_cache_quant_algo
    if not is_quantized and config.dtype == gate.reference_dtype:
        log.info("%s: in %s, unquantized, it is its own reference", engine_dir, config.dtype)
        return None
    if quantization.quant_algo is not None and recipe.quantization.algo is None:
        log.warning(
            "%s: was quantized already, there is nothing to compare with; gate.reference names one",
            recipe.model,
        )
        return None
    return model_reference(recipe.model, config, gate, cache, progress, workers)


def find_reference(
    directory: Path,
    config: CheckpointConfig,
    gate: GateRecipe,
    cache: Path,
    progress: Progress,
    workers: int,
) -> Reference:
    """Return the reference `directory` holds: an engine, an output of a build, or a model.

    `config` is that of the engine it is for. Raises: CheckpointError when it is none of them.
    """
    for engine_dir in (directory, directory / "engine"):
        if (engine_dir / "config.json").is_file():
            if "pretrained_config" in read_engine_config(engine_dir):
                return engine_reference(engine_dir)
    if not (directory / "config.json").is_file():
        raise CheckpointError(
            f"{directory}: no config.json, expected an engine or a Hugging Face model"
        )
    return model_reference(directory, config, gate, cache, progress, workers)


def engine_reference(engine_dir: Path) -> Reference:
    """Return an existing engine as a reference. Raises: CheckpointError when it is damaged."""
    manifest = artifacts.read_manifest(engine_dir)
    require_intact(engine_dir, manifest)
    facts = ReferenceFacts(
        source=str(engine_dir), dtype=read_config(engine_dir).dtype, key=manifest.content_digest
    )
    return Reference(facts=facts, open=lambda: open_engine(engine_dir))


def model_reference(
    model_dir: Path,
    config: CheckpointConfig,
    gate: GateRecipe,
    cache: Path,
    progress: Progress,
    workers: int,
) -> Reference:
    """Return the unquantized engine of a Hugging Face model, of as many positions as are measured.

    Nothing is made before it is opened.
    """
    max_seq_len = min(WINDOW_TOKENS, config.arch.max_position_embeddings)
    recipe = Recipe.model_validate(
        {
            "model": model_dir,
            "dtype": gate.reference_dtype,
            "build": {
                "max_batch_size": 1,
                "max_num_tokens": STEP_TOKENS,
                "max_seq_len": max_seq_len,
            },
        }
    )
    stage: dict[str, Any] = {
        "stage": "reference",
        "inputs": {"model": pipeline.digest_model(model_dir)},
        "recipe": {"dtype": gate.reference_dtype, "max_seq_len": max_seq_len},
        "tools": {"llmc": tool_version(*_COMPILER_ROOMS)},
    }
    key = artifacts.stage_key(**stage)

    def build(staging: Path) -> None:
        scratch = staging / "build"
        pipeline.build(
            recipe,
            scratch,
            until="engine",
            progress=progress,
            report=lambda _: None,
            workers=workers,
        )
        (scratch / "engine" / artifacts.MANIFEST_NAME).unlink()
        for path in sorted((scratch / "engine").iterdir()):
            path.rename(staging / path.name)
        shutil.rmtree(scratch)

    def open_cached() -> Engine:
        directory = cache.absolute() / "references"
        with exclusive(directory, wait=True):
            made = run_stage(directory / key[:32], build, **stage)
            log.info("reference: %s, %s", gate.reference_dtype, made.directory)
            os.utime(made.directory)
            engine = open_engine(made.directory)
            _prune(directory)
        return engine

    facts = ReferenceFacts(source=str(model_dir), dtype=gate.reference_dtype, key=key)
    return Reference(facts=facts, open=open_cached)


def open_engine(engine_dir: Path) -> Engine:
    """Load all ranks of an engine, with a KV pool of one window.

    Raises: UnsupportedError when it does not fit into memory.
    """
    size = sum(path.stat().st_size for path in engine_dir.glob("rank*.engine"))
    free = psutil.virtual_memory().available
    if size > free:
        raise UnsupportedError(
            f"{engine_dir}: {size / 2**30:.1f} GiB, {free / 2**30:.1f} GiB of memory are free",
            hint="gate.reference_dtype=bfloat16 halves a float32 reference; gate elsewhere with"
            " `llmc verify`",
        )
    kv = KvCacheConfig(max_tokens=WINDOW_TOKENS + _LARGEST_BLOCK)
    world_size = read_mapping(engine_dir).world_size
    if world_size == 1:
        return load_engine(engine_dir, kv=kv)
    return load_ranks(engine_dir, world_size=world_size, kv=kv)


def read_config(engine_dir: Path) -> CheckpointConfig:
    """Return the checkpoint's config inside an engine's, or of the checkpoint it was written from.

    Raises: CheckpointError.
    """
    behind = checkpoint_behind(engine_dir)
    if behind is not None:
        return Checkpoint.open(behind).config
    config = read_engine_config(engine_dir).get("pretrained_config")
    if not isinstance(config, dict):
        raise CheckpointError(f"{engine_dir}/config.json: no pretrained_config, expected an engine")
    return CheckpointConfig.from_json(config)


def require_intact(directory: Path, manifest: artifacts.Manifest) -> None:
    """Raise CheckpointError with everything that differs from the manifest."""
    damage = artifacts.verify(directory, manifest)
    if damage:
        raise CheckpointError(
            "\n".join(f"{directory}/{line}" for line in damage), hint="build it again"
        )


def _prune(directory: Path) -> None:
    """Remove references beyond CACHE_BYTES, the least recently used first.

    An engine that is loaded lives on without its file.
    """
    kept = 0
    entries = [path for path in directory.iterdir() if (path / artifacts.MANIFEST_NAME).is_file()]
    for entry in sorted(entries, key=lambda path: path.stat().st_mtime, reverse=True):
        kept += artifacts.read_manifest(entry).num_bytes
        if kept > CACHE_BYTES:
            log.info("removing %s from the cache of references", entry)
            shutil.rmtree(entry)
