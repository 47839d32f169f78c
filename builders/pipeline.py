"""The stages that make a checkpoint and an engine, in order, each reused by its key.

Before any work all reasons that stand in the way are collected and reported together. What the
stages do is convert's and the targets' part; emitting a Triton repository is not a builder's.
"""

import logging
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from llmc import artifacts
from llmc.arch import ModelArch
from llmc.builders.convert import COPIED_FILES, convert, preflight
from llmc.builders.hf.preflight import examine
from llmc.builders.quantize.calibration import Calibration, needs_calibration
from llmc.builders.quantize.state import remove_states
from llmc.builders.quantize.texts import digest_of
from llmc.builders.targets import BuildLimits
from llmc.checkpoint import (
    Checkpoint,
    CheckpointConfig,
    Quantization,
    forbidden,
    unsplittable,
)
from llmc.errors import CheckpointError, LlmcError, UnsupportedError
from llmc.log import Progress
from llmc.lookup import load
from llmc.mapping import Mapping
from llmc.quant import FORMATS
from llmc.quant.format import load_format
from llmc.recipes.schema import BuildRecipe, QuantizationRecipe, Recipe
from llmc.stages import StageResult, run_stage, tool_version
from llmc.targets import TARGETS

log = logging.getLogger(__name__)

MODEL_SUFFIXES = (".json", ".safetensors", ".jinja", ".model", ".txt")
"""Files of a Hugging Face directory that can reach the checkpoint: config, weights, tokenizer."""

DEFAULT_LAYOUT = "sm80"
"""Where a format has no portable layout and none is named: what most GPUs read."""

_COMPILER_ROOMS = ("builders", "plugins", "quant", "checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A recipe that was checked against its model and its target."""

    recipe: Recipe
    choices: dict[str, Any]
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
    plan = _check(recipe, for_engine=until == "engine")
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


def _check(recipe: Recipe, *, for_engine: bool) -> _Plan:
    """Look at recipe, model and target together; raise one error with all that is wrong.

    A checkpoint may be wanted for another machine: `for_engine` False does not ask the target.
    """
    target = load(TARGETS, recipe.target.kind, package="llmc.builders.targets", kind="target")
    model, model_reasons = examine(recipe.model)
    if model is None:
        raise _model_error(recipe.model, model_reasons)
    model.weights.close()
    try:
        choices = _choices(recipe, model.arch, recipe.dtype or model.dtype)
    except UnsupportedError as error:
        raise UnsupportedError(
            f"{recipe.model}: this recipe cannot be built",
            [*model_reasons, error.message],
            error.hint,
        ) from error
    found = preflight(recipe.model, **choices)
    if model_reasons:
        raise _model_error(recipe.model, found)
    config = CheckpointConfig(arch=model.arch, **{**choices, "dtype": recipe.dtype or model.dtype})
    limits = resolve_limits(recipe.build, model.arch.max_position_embeddings)
    reasons = [*found, *limit_reasons(limits, model.arch.max_position_embeddings)]
    if for_engine and not found:
        reasons += target.unsupported(config, limits)
    if reasons:
        raise UnsupportedError(f"{recipe.model}: this recipe cannot be built", reasons)
    _announce(recipe, config, limits)
    return _Plan(recipe=recipe, choices=choices, config=config, limits=limits, target=target)


def _choices(recipe: Recipe, arch: ModelArch, dtype: str) -> dict[str, Any]:
    """Return the recipe's checkpoint part in the words of convert; `dtype` is what None means."""
    mapping = Mapping(
        tp_size=recipe.mapping.tp,
        pp_size=recipe.mapping.pp,
        moe_tp_size=recipe.mapping.moe_tp,
        moe_ep_size=recipe.mapping.moe_ep,
    )
    quantization, layout = choose_quantization(recipe.quantization, arch, mapping, dtype)
    return {
        "dtype": recipe.dtype,
        "mapping": mapping,
        "quantization": quantization,
        "use_parallel_embedding": recipe.mapping.use_parallel_embedding,
        "embedding_sharding_dim": recipe.mapping.embedding_sharding_dim,
        "layout": layout,
    }


def choose_quantization(
    wanted: QuantizationRecipe, arch: ModelArch, mapping: Mapping, dtype: str
) -> tuple[Quantization, str | None]:
    """Fill in what the recipe leaves open: group size, and the layout of what has no portable one.

    The largest group size that fits the model and its split is taken. An unknown algorithm is kept:
    `forbidden` has the words for it.
    """
    if wanted.algo is not None and wanted.algo not in FORMATS:
        unknown = Quantization(quant_algo=wanted.algo, kv_cache_quant_algo=wanted.kv_cache)
        return unknown, wanted.layout
    form = load_format(wanted.algo) if wanted.algo is not None else None
    layout: str | None = wanted.layout
    if form is not None and layout is None:
        if form.needs_layout and form.in_checkpoint == "quantized":
            layout = DEFAULT_LAYOUT
            log.info("layout: %s, as %s has no portable one", layout, form.algo)
    sizes: list[int | None] = [wanted.group_size]
    if form is not None and wanted.group_size is None and form.group_sizes:
        sizes = [*sorted(form.group_sizes, reverse=True)]
    fitting = quantizations = [
        replace(
            Quantization.of(
                wanted.algo, wanted.kv_cache, group_size=size, exclude_modules=wanted.exclude
            ),
            smoothquant_val=wanted.alpha,
        )
        for size in sizes
    ]
    if len(sizes) > 1:
        fitting = [
            choice
            for choice in quantizations
            if not _misfits(
                CheckpointConfig(
                    arch=arch, dtype=dtype, mapping=mapping, quantization=choice, layout=layout
                )
            )
        ]
        if fitting:
            log.info("group_size: %d, the largest that fits", fitting[0].group_size)
    return (fitting or quantizations)[0], layout


def _misfits(config: CheckpointConfig) -> list[str]:
    return unsplittable(config) or forbidden(config)


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
    recipe, tools = plan.recipe, {"llmc": tool_version(*_COMPILER_ROOMS)}
    inputs = {"model": digest_model(recipe.model)}
    settings: dict[str, Any] = {
        "dtype": plan.config.dtype,
        "quantization": plan.config.quantization.to_json(),
        "layout": plan.config.layout,
        "mapping": recipe.mapping.model_dump(mode="json"),
    }
    calibration = None
    if needs_calibration(plan.config):
        wanted = recipe.quantization.calibration
        inputs["calibration"] = digest_of(wanted.data)
        settings["calibration"] = {"samples": wanted.samples, "max_tokens": wanted.max_tokens}
        calibration = Calibration(
            state_parent=final.parent,
            key=f"{inputs['model']} {tools['llmc']}",
            data=wanted.data,
            samples=wanted.samples,
            max_tokens=wanted.max_tokens,
        )

    def work(staging: Path) -> None:
        convert(
            recipe.model,
            staging,
            **plan.choices,
            calibration=calibration,
            progress=progress,
            workers=workers,
        )

    result = run_stage(
        final, work, stage="checkpoint", inputs=inputs, recipe=settings, tools=tools, force=force
    )
    # Only now is the checkpoint where it belongs; until here a calibration could go on.
    remove_states(final.parent)
    return result


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
