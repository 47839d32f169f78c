"""The stages that make a checkpoint and an engine, in order, each reused by its key.

Before any work all reasons that stand in the way are collected and reported together. What the
stages do is convert's and the targets' part; emitting a Triton repository is not a builder's.
"""

import logging
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from llmc import artifacts
from llmc.builders.convert import COPIED_FILES, convert, preflight
from llmc.builders.hf.preflight import examine
from llmc.builders.targets import BuildLimits
from llmc.checkpoint import Checkpoint, CheckpointConfig, Quantization
from llmc.errors import CheckpointError, LlmcError, UnsupportedError
from llmc.log import Progress
from llmc.lookup import load
from llmc.mapping import Mapping
from llmc.recipes.schema import BuildRecipe, Recipe
from llmc.stages import StageResult, run_stage, tool_version
from llmc.targets import TARGETS

log = logging.getLogger(__name__)

MODEL_SUFFIXES = (".json", ".safetensors", ".jinja", ".model", ".txt")
"""Files of a Hugging Face directory that can reach the checkpoint: config, weights, tokenizer."""

_COMPILER_ROOMS = ("builders", "plugins", "quant", "checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A recipe that was checked against its model and its target."""

    recipe: Recipe
    config: CheckpointConfig
    limits: BuildLimits
    target: ModuleType


def build(
    recipe: Recipe,
    output: Path,
    *,
    until: Literal["checkpoint", "engine"],
    progress: Progress,
    report: Callable[[StageResult], None],
    workers: int = 1,
    force: bool = False,
) -> tuple[StageResult, ...]:
    """Make `output`/checkpoint and, unless `until` says otherwise, `output`/engine.

    `report` is told of each stage when it is done. `workers` threads write rank files. `force` runs
    stages whose result is there already.
    Raises: CheckpointError for a model that is damaged, UnsupportedError with every reason why this
    recipe cannot be built.
    """
    plan = _check(recipe)
    checkpoint = _build_checkpoint(plan, output / "checkpoint", progress, workers, force)
    report(checkpoint)
    if until == "checkpoint":
        return (checkpoint,)
    engine = _build_engine(plan, checkpoint, output / "engine", progress, force)
    report(engine)
    return (checkpoint, engine)


def resolve_limits(build: BuildRecipe, max_position_embeddings: int) -> BuildLimits:
    """Fill in what the recipe leaves to the model: longest sequence and longest prompt."""
    max_seq_len = build.max_seq_len or max_position_embeddings
    return BuildLimits(
        max_batch_size=build.max_batch_size,
        max_num_tokens=build.max_num_tokens,
        max_input_len=build.max_input_len or max_seq_len - 1,
        max_seq_len=max_seq_len,
        tokens_per_block=build.plugins.tokens_per_block,
        kv_cache_dtype=None,
    )


def digest_model(model_dir: Path) -> str:
    """Digest the files of a Hugging Face directory that can reach the checkpoint."""
    files = [
        path
        for path in model_dir.iterdir()
        if path.is_file() and path.suffix in MODEL_SUFFIXES and path.name != artifacts.MANIFEST_NAME
    ]
    return artifacts.digest_tree(model_dir, files)


def limit_reasons(limits: BuildLimits, max_position_embeddings: int) -> list[str]:
    """Return why these limits do not fit together; TensorRT-LLM changes some silently."""
    reasons = []
    if limits.max_seq_len > max_position_embeddings:
        reasons.append(
            f"build.max_seq_len: {limits.max_seq_len}, expected at most the model's"
            f" max_position_embeddings {max_position_embeddings}"
        )
    if limits.max_input_len >= limits.max_seq_len:
        reasons.append(
            f"build.max_input_len: {limits.max_input_len}, expected less than build.max_seq_len"
            f" {limits.max_seq_len}: an answer needs at least one token"
        )
    if limits.max_num_tokens < limits.max_batch_size:
        reasons.append(
            f"build.max_num_tokens: {limits.max_num_tokens}, expected at least build.max_batch_size"
            f" {limits.max_batch_size}: each sequence takes a token of a step"
        )
    if limits.max_num_tokens < limits.tokens_per_block:
        reasons.append(
            f"build.max_num_tokens: {limits.max_num_tokens}, expected at least"
            f" build.plugins.tokens_per_block {limits.tokens_per_block}"
        )
    return reasons


def _check(recipe: Recipe) -> _Plan:
    """Look at recipe, model and target together; raise one error with all that is wrong."""
    target = load(TARGETS, recipe.target.kind, package="llmc.builders.targets", kind="target")
    model, model_reasons = examine(recipe.model)
    if model is None:
        raise _model_error(recipe.model, model_reasons)
    model.weights.close()
    reasons: list[str] = []
    if recipe.quantization.kv_cache is not None:
        reasons.append(
            f"quantization.kv_cache: {recipe.quantization.kv_cache!r}, available: none yet"
        )
    try:
        choices = _choices(recipe)
    except UnsupportedError as error:
        raise UnsupportedError(
            f"{recipe.model}: this recipe cannot be built",
            [*model_reasons, error.message, *reasons],
            error.hint,
        ) from error
    found = preflight(recipe.model, **choices)
    if model_reasons:
        raise _model_error(recipe.model, [*found, *reasons])
    config = CheckpointConfig(arch=model.arch, **{**choices, "dtype": recipe.dtype or model.dtype})
    limits = resolve_limits(recipe.build, model.arch.max_position_embeddings)
    reasons += [*found, *limit_reasons(limits, model.arch.max_position_embeddings)]
    if not found:
        reasons += target.unsupported(config, limits)
    if reasons:
        raise UnsupportedError(f"{recipe.model}: this recipe cannot be built", reasons)
    _announce(recipe, config, limits)
    return _Plan(recipe=recipe, config=config, limits=limits, target=target)


def _choices(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe's checkpoint part in the words of convert."""
    mapping = recipe.mapping
    return {
        "dtype": recipe.dtype,
        "mapping": Mapping(
            tp_size=mapping.tp,
            pp_size=mapping.pp,
            moe_tp_size=mapping.moe_tp,
            moe_ep_size=mapping.moe_ep,
        ),
        "quantization": Quantization(
            quant_algo=recipe.quantization.algo, exclude_modules=recipe.quantization.exclude
        ),
        "use_parallel_embedding": mapping.use_parallel_embedding,
        "embedding_sharding_dim": mapping.embedding_sharding_dim,
    }


def _model_error(model_dir: Path, reasons: list[str]) -> LlmcError:
    lines = [f"{model_dir}: cannot be converted", *dict.fromkeys(reasons)]
    return CheckpointError("\n  - ".join(lines))


def _announce(recipe: Recipe, config: CheckpointConfig, limits: BuildLimits) -> None:
    arch = config.arch
    log.info(
        "%s: %s, %d layers, %s, quantization %s",
        *(recipe.model, arch.architecture, arch.num_hidden_layers, config.dtype),
        config.quantization.quant_algo or "none",
    )
    log.info(
        "target %s: up to %d sequences of %d tokens, prompts up to %d",
        *(recipe.target.kind, limits.max_batch_size, limits.max_seq_len, limits.max_input_len),
    )


def _build_checkpoint(
    plan: _Plan, final: Path, progress: Progress, workers: int, force: bool
) -> StageResult:
    recipe = plan.recipe
    choices = _choices(recipe)

    def work(staging: Path) -> None:
        convert(recipe.model, staging, **choices, progress=progress, workers=workers)

    return run_stage(
        final,
        work,
        stage="checkpoint",
        inputs={"model": digest_model(recipe.model)},
        recipe={
            "dtype": plan.config.dtype,
            "quantization": recipe.quantization.model_dump(mode="json"),
            "mapping": recipe.mapping.model_dump(mode="json"),
        },
        tools={"llmc": tool_version(*_COMPILER_ROOMS)},
        force=force,
    )


def _build_engine(
    plan: _Plan, checkpoint: StageResult, final: Path, progress: Progress, force: bool
) -> StageResult:
    def work(staging: Path) -> None:
        opened = Checkpoint.open(checkpoint.directory)
        plan.target.build(opened, staging, limits=plan.limits, progress=progress)
        for name in COPIED_FILES:
            if (checkpoint.directory / name).is_file():
                shutil.copyfile(checkpoint.directory / name, staging / name)

    return run_stage(
        final,
        work,
        stage="engine",
        inputs={"checkpoint": checkpoint.manifest.content_digest},
        recipe={"build": asdict(plan.limits)},
        tools={"llmc": tool_version(*_COMPILER_ROOMS)},
        target=plan.recipe.target.model_dump(mode="json"),
        force=force,
    )
