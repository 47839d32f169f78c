"""Gives an engine of TensorRT-LLM that was built without weights those of a checkpoint."""

import json
import shutil
from pathlib import Path
from typing import Any

from llmc import artifacts
from llmc.builders.targets.tensorrt_llm.local_build import refit_engines
from llmc.checkpoint import Checkpoint
from llmc.errors import CheckpointError

SAME = (
    *("architecture", "dtype", "vocab_size", "hidden_size", "intermediate_size"),
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("mapping.world_size", "mapping.tp_size", "mapping.pp_size"),
    *("quantization.quant_algo", "quantization.kv_cache_quant_algo"),
)
"""What of a checkpoint is in an engine's plans, whatever its weights."""


def refit_in_place(engine_dir: Path, checkpoint: Checkpoint) -> list[Path]:
    """Replace the engine by one that has the checkpoint's weights; return its rank files.

    The engine is as it was until the new one is whole.
    Raises: CheckpointError for an engine or a checkpoint that does not fit, ToolchainError where
    TensorRT-LLM or the GPU is missing, BuildError for what TensorRT-LLM says.
    """
    config = json.loads((engine_dir / "config.json").read_text(encoding="utf-8"))
    if not config["build_config"].get("use_strip_plan"):
        raise CheckpointError(
            f"{engine_dir}: an engine that has its weights; nothing to refit",
            hint="engines built with target.strip_plan come without",
        )
    reasons = differences(config["pretrained_config"], checkpoint.config.to_json())
    if reasons:
        lines = [f"{checkpoint.directory}: not a checkpoint of {engine_dir}", *reasons]
        raise CheckpointError("\n  - ".join(lines))
    content = _content_digest(checkpoint.directory)
    with artifacts.stage(engine_dir) as staging:
        refit_engines(engine_dir, checkpoint.directory, staging)
        for path in engine_dir.iterdir():
            if path.is_file() and not (staging / path.name).exists():
                shutil.copy2(path, staging)
        _renew_manifest(staging, content)
    return sorted(engine_dir.glob("rank*.engine"))


def differences(engine: dict[str, Any], checkpoint: dict[str, Any]) -> list[str]:
    """Return where two configurations differ in what plans are made of."""
    reasons = []
    for name in SAME:
        built, given = _find(engine, name), _find(checkpoint, name)
        if built != given:
            reasons.append(f"{name}: {given!r}, the engine has {built!r}")
    return reasons


def _find(config: dict[str, Any], name: str) -> object:
    part: Any = config
    for key in name.split("."):
        part = part.get(key) if isinstance(part, dict) else None
    return part


def _content_digest(checkpoint_dir: Path) -> str:
    try:
        return artifacts.read_manifest(checkpoint_dir).content_digest
    except CheckpointError:  # a checkpoint from elsewhere has none
        return artifacts.digest_tree(checkpoint_dir)


def _renew_manifest(directory: Path, checkpoint_digest: str) -> None:
    """Renew the manifest, where the engine was built by llmc and has one."""
    if not (directory / artifacts.MANIFEST_NAME).is_file():
        return
    old = artifacts.read_manifest(directory)
    (directory / artifacts.MANIFEST_NAME).unlink()
    artifacts.write_manifest(
        directory,
        stage=old.stage,
        inputs={**old.inputs, "checkpoint": checkpoint_digest},
        recipe=old.recipe,
        tools=old.tools,
        target=old.target,
        measured=old.measured,
    )
