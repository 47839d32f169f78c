"""An engine from config.json alone, for a target whose plans get their weights when loaded.

No weight is read and none need be there: what is built depends on shapes and on the quantization.
"""

import logging
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from llmc.artifacts import digest_file
from llmc.builders.automatic import AUTO
from llmc.builders.choices import alternatives_of
from llmc.builders.hf.config import HfConfig
from llmc.builders.hf.preflight import find_family
from llmc.builders.hf.tokenizer_files import copy_files
from llmc.builders.targets import BuildLimits
from llmc.checkpoint import CheckpointConfig, forbidden, unsplittable
from llmc.errors import CheckpointError, UnsupportedError
from llmc.log import Progress
from llmc.recipes.schema import Recipe
from llmc.stages import StageResult, run_stage

log = logging.getLogger(__name__)


def suffice(target: ModuleType, recipe: Recipe) -> bool:
    """Say whether `target` builds this recipe without weights."""
    return hasattr(target, "needs_weights") and not target.needs_weights(recipe.target)


def config_of(recipe: Recipe) -> CheckpointConfig:
    """Return the config of the checkpoint that the recipe would make.

    Raises: CheckpointError for a config.json that cannot be read, UnsupportedError with every
    reason why there is no such checkpoint.
    """
    config = HfConfig.open(recipe.model)
    family = find_family(config)
    arch = family.arch(config) if family is not None else None
    config.question_unread()
    if arch is None or config.reasons:
        lines = [f"{recipe.model}: cannot be converted", *config.reasons]
        raise CheckpointError("\n  - ".join(lines))
    if recipe.quantization.algo == AUTO:
        raise UnsupportedError(
            "quantization.algo: auto is chosen by measuring weights, and target.weights: refit"
            " builds without them"
        )
    dtype = recipe.dtype or config.dtype or "float32"
    ((choices, _),) = alternatives_of(recipe, arch, dtype)
    made = CheckpointConfig(arch=arch, **{**choices, "dtype": dtype})
    reasons = [*unsplittable(made), *forbidden(made)]
    if reasons:
        raise UnsupportedError(f"{recipe.model}: this recipe cannot be built", reasons)
    return made


def build_engine(
    recipe: Recipe,
    config: CheckpointConfig,
    final: Path,
    *,
    target: ModuleType,
    limits: BuildLimits,
    tools: dict[str, str],
    progress: Progress,
    force: bool,
) -> StageResult:
    """Make `final` of shapes. Raises: UnsupportedError with every reason of the target's."""
    reasons = target.unsupported(config, limits, recipe.target)
    if reasons:
        raise UnsupportedError(f"{recipe.model}: this recipe cannot be built", reasons)

    def work(staging: Path) -> dict[str, Any] | None:
        copy_files(recipe.model, staging)
        measured: dict[str, Any] | None = target.build(
            config, staging, limits=limits, options=recipe.target, progress=progress
        )
        return measured

    return run_stage(
        final,
        work,
        stage="engine",
        inputs={"config": digest_file(recipe.model / "config.json")},
        recipe={"build": asdict(limits), "checkpoint": config.to_json()},
        tools=tools,
        target=recipe.target.model_dump(mode="json"),
        force=force,
    )
