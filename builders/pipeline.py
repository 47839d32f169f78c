"""The stages that make a checkpoint and an engine, in order, each reused by its key.

Before any work all reasons that stand in the way are collected and reported together. What the
stages do is convert's and the targets' part; emitting a Triton repository is not a builder's.
"""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from llmc import artifacts
from llmc.builders import automatic, shapes
from llmc.builders.adoption import adopt
from llmc.builders.choices import alternatives_of
from llmc.builders.convert import convert, preflight
from llmc.builders.hf.preflight import examine
from llmc.builders.hf.tokenizer_files import copy_files, files_to_copy
from llmc.builders.quantize.calibration import Calibration, needs_calibration
from llmc.builders.quantize.state import remove_states
from llmc.builders.quantize.texts import digest_of
from llmc.builders.targets import BuildLimits
from llmc.checkpoint import (
    Checkpoint,
    CheckpointConfig,
    Quantization,
)
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
    """A recipe that was checked against its model and its target.

    With `candidates` the quantization is still to be chosen among them.
    """

    recipe: Recipe
    choices: dict[str, Any]
    config: CheckpointConfig
    limits: BuildLimits
    target: ModuleType
    candidates: tuple[Quantization, ...] = ()
    is_prequantized: bool = False


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

    A target whose engines are bound to a GPU that is not here makes `output`/gpu_build instead: the
    job that builds it. What that job built, copied to `output`/engine, is taken over.

    `report` is told of each stage when it is done. `workers` threads write rank files. `force` runs
    stages whose result is there already.
    Raises: CheckpointError for a model that is damaged, UnsupportedError with every reason why this
    recipe cannot be built.
    """
    if until == "engine":
        target = _find_target(recipe)
        if shapes.suffice(target, recipe):
            report(built := _build_of_shapes(recipe, target, output / "engine", progress, force))
            return (built,)
    plan = _check(recipe, for_engine=until == "engine")
    results = []
    if plan.candidates:
        results.append(_measure_sensitivities(plan, output / "sensitivity", progress, force))
        report(results[-1])
        plan = _choose(plan, results[-1].directory)
    chosen_by = results[0].manifest.content_digest if results else None
    checkpoint = _build_checkpoint(
        plan, output / "checkpoint", progress, workers, force, chosen_by=chosen_by
    )
    report(checkpoint)
    results.append(checkpoint)
    if until == "engine":
        if hasattr(plan.target, "hand_over") and plan.target.hands_over(recipe.target):
            results.append(job := _hand_over(plan, checkpoint, output / "gpu_build", force))
            report(job)
            engine = _adopt(plan, checkpoint, job, output / "engine")
        else:
            engine = _build_engine(plan, checkpoint, output / "engine", progress, force)
        if engine is not None:
            results.append(engine)
            report(engine)
    return tuple(results)


def resolve_limits(
    build: BuildRecipe, max_position_embeddings: int, target: ModuleType
) -> BuildLimits:
    """Fill in what the recipe leaves to the model: longest sequence and longest prompt."""
    reads_choices = getattr(target, "READS_KERNEL_CHOICES", False)
    max_seq_len = build.max_seq_len or max_position_embeddings
    return BuildLimits(
        max_batch_size=build.max_batch_size,
        max_num_tokens=build.max_num_tokens,
        max_input_len=build.max_input_len or max_seq_len - 1,
        max_seq_len=max_seq_len,
        tokens_per_block=build.plugins.tokens_per_block,
        kv_cache_dtype=None,
        kernel_choices=build.plugins.kernel_choices if reads_choices else {},
    )


def digest_model(model_dir: Path) -> str:
    """Digest the files of a Hugging Face directory that can reach the checkpoint."""
    files = [
        path
        for path in model_dir.iterdir()
        if path.is_file() and path.suffix in MODEL_SUFFIXES and path.name != artifacts.MANIFEST_NAME
    ]
    templates = [model_dir / path for path in files_to_copy(model_dir)]
    return artifacts.digest_tree(model_dir, {*files, *templates})


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


def _find_target(recipe: Recipe) -> ModuleType:
    return load(TARGETS, recipe.target.kind, package="llmc.builders.targets", kind="target")


def _build_of_shapes(
    recipe: Recipe, target: ModuleType, final: Path, progress: Progress, force: bool
) -> StageResult:
    config = shapes.config_of(recipe)
    positions = config.arch.max_position_embeddings
    limits = resolve_limits(recipe.build, positions, target)
    reasons = limit_reasons(limits, positions)
    if reasons:
        raise UnsupportedError(f"{recipe.model}: this recipe cannot be built", reasons)
    _announce(recipe, config, limits)
    return shapes.build_engine(
        recipe,
        config,
        final,
        target=target,
        limits=limits,
        tools={"llmc": tool_version(*_COMPILER_ROOMS)},
        progress=progress,
        force=force,
    )


def _check(recipe: Recipe, *, for_engine: bool) -> _Plan:
    """Look at recipe, model and target together; raise one error with all that is wrong.

    A checkpoint may be wanted for another machine: `for_engine` False does not ask the target.
    """
    target = _find_target(recipe)
    model, model_reasons = examine(recipe.model)
    if model is None:
        raise _model_error(recipe.model, model_reasons)
    model.weights.close()
    dtype = recipe.dtype or model.dtype
    try:
        own = model.prequantized.quantization if model.prequantized is not None else None
        alternatives = alternatives_of(recipe, model.arch, dtype, own)
    except UnsupportedError as error:
        raise UnsupportedError(
            f"{recipe.model}: this recipe cannot be built",
            [*model_reasons, *(error.reasons or (error.message,))],
            error.hint,
        ) from error
    found = [reason for choices, _ in alternatives for reason in preflight(recipe.model, **choices)]
    found = list(dict.fromkeys(found))
    if model_reasons:
        raise _model_error(recipe.model, found)
    configs = [
        CheckpointConfig(arch=model.arch, **{**choices, "dtype": dtype})
        for choices, _ in alternatives
    ]
    candidates = tuple(one for _, one in alternatives if one is not None)
    if candidates and not found:
        target_bits = recipe.quantization.target_bits
        assert target_bits is not None
        found = automatic.budget_reasons(configs[0], candidates, target_bits)
    limits = resolve_limits(recipe.build, model.arch.max_position_embeddings, target)
    reasons = [*found, *limit_reasons(limits, model.arch.max_position_embeddings)]
    if for_engine and not found:
        reasons += [
            reason for one in configs for reason in target.unsupported(one, limits, recipe.target)
        ]
    if reasons:
        reasons = list(dict.fromkeys(reasons))
        raise UnsupportedError(f"{recipe.model}: this recipe cannot be built", reasons)
    if for_engine and hasattr(target, "check_host"):
        target.check_host(recipe.target)
    _announce(recipe, configs[0], limits)
    choices, config = alternatives[0][0], configs[0]
    if hasattr(target, "splits_checkpoint") and not target.splits_checkpoint(recipe.target):
        # What was checked above is how the model is served: by so many ranks.
        choices, config = choices | {"mapping": Mapping()}, replace(config, mapping=Mapping())
    return _Plan(
        recipe=recipe,
        choices=choices,
        config=config,
        limits=limits,
        target=target,
        candidates=candidates,
        is_prequantized=model.prequantized is not None,
    )


def _model_error(model_dir: Path, reasons: list[str]) -> LlmcError:
    lines = [f"{model_dir}: cannot be converted", *dict.fromkeys(reasons)]
    return CheckpointError("\n  - ".join(lines))


def _announce(recipe: Recipe, config: CheckpointConfig, limits: BuildLimits) -> None:
    arch = config.arch
    log.info(
        "%s: %s, %d layers, %s, quantization %s",
        *(recipe.model, arch.architecture, arch.num_hidden_layers, config.dtype),
        recipe.quantization.algo or config.quantization.quant_algo or "none",
    )
    log.info(
        "target %s: up to %d sequences of %d tokens, prompts up to %d",
        *(recipe.target.kind, limits.max_batch_size, limits.max_seq_len, limits.max_input_len),
    )
    left = [
        name for name in recipe.build.plugins.kernel_choices if name not in limits.kernel_choices
    ]
    if left:
        log.info(
            "build.plugins: %s choose among TensorRT-LLM's kernels; the target %s has one for each"
            " op",
            *(", ".join(left), recipe.target.kind),
        )


def _build_checkpoint(
    plan: _Plan,
    final: Path,
    progress: Progress,
    workers: int,
    force: bool,
    *,
    chosen_by: str | None,
) -> StageResult:
    """Convert; `chosen_by` is the digest of the sensitivities that quantization was chosen by."""
    recipe, tools = plan.recipe, {"llmc": tool_version(*_COMPILER_ROOMS)}
    inputs = {"model": digest_model(recipe.model)}
    if chosen_by is not None:
        inputs["sensitivity"] = chosen_by
    settings: dict[str, Any] = {
        "dtype": plan.config.dtype,
        "quantization": plan.config.quantization.to_json(),
        "layout": plan.config.layout,
        "mapping": plan.config.mapping.to_json(),
        "use_parallel_embedding": plan.config.use_parallel_embedding,
        "embedding_sharding_dim": plan.config.embedding_sharding_dim,
    }
    calibration = None
    if needs_calibration(plan.config) and not plan.is_prequantized:
        calibration = _calibration(plan, final, inputs, settings, tools)

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


def _calibration(
    plan: _Plan,
    final: Path,
    inputs: dict[str, str],
    settings: dict[str, Any],
    tools: dict[str, str],
) -> Calibration:
    """Return what the recipe calibrates with, and add it to what the stage depends on."""
    wanted = plan.recipe.quantization.calibration
    inputs["calibration"] = digest_of(wanted.data)
    alpha = plan.recipe.quantization.alpha
    settings["calibration"] = {
        "samples": wanted.samples,
        "max_tokens": wanted.max_tokens,
        "alpha": alpha,
    }
    return Calibration(
        state_parent=final.parent,
        key=f"{inputs['model']} {tools['llmc']}",
        data=wanted.data,
        samples=wanted.samples,
        max_tokens=wanted.max_tokens,
        alpha=alpha,
    )


def _measure_sensitivities(
    plan: _Plan, final: Path, progress: Progress, force: bool
) -> StageResult:
    tools = {"llmc": tool_version(*_COMPILER_ROOMS)}
    inputs = {"model": digest_model(plan.recipe.model)}
    settings: dict[str, Any] = {
        "dtype": plan.config.dtype,
        "candidates": [one.to_json() for one in plan.candidates],
    }
    calibration = _calibration(plan, final, inputs, settings, tools)
    return run_stage(
        final,
        lambda staging: automatic.measure(
            plan.recipe.model, plan.config, plan.candidates, calibration, staging, progress
        ),
        stage="sensitivity",
        inputs=inputs,
        recipe=settings,
        tools=tools,
        force=force,
    )


def _choose(plan: _Plan, sensitivity: Path) -> _Plan:
    """Return the plan with the best quantization within the recipe's budget."""
    target_bits = plan.recipe.quantization.target_bits
    assert target_bits is not None
    quantization, line = automatic.choose(
        sensitivity, plan.config.arch, plan.candidates, target_bits
    )
    log.info("%s", line)
    layout = automatic.needed_layout(quantization, plan.recipe.quantization.layout)
    chosen: dict[str, Any] = {"quantization": quantization, "layout": layout}
    return replace(plan, choices={**plan.choices, **chosen}, config=replace(plan.config, **chosen))


def _build_engine(
    plan: _Plan, checkpoint: StageResult, final: Path, progress: Progress, force: bool
) -> StageResult:
    toolchain = plan.target.toolchain() if hasattr(plan.target, "toolchain") else {}

    def work(staging: Path) -> dict[str, Any] | None:
        measured: dict[str, Any] | None = plan.target.build(
            Checkpoint.open(checkpoint.directory),
            staging,
            limits=plan.limits,
            options=plan.recipe.target,
            progress=progress,
        )
        copy_files(checkpoint.directory, staging)
        return measured

    parts = _engine_parts(plan, checkpoint, **toolchain)
    return run_stage(final, work, stage="engine", force=force, **parts)


def _engine_parts(plan: _Plan, checkpoint: StageResult, **toolchain: str) -> dict[str, Any]:
    """Return what an engine is made from, wherever it is built."""
    return {
        "inputs": {"checkpoint": checkpoint.manifest.content_digest},
        "recipe": {"build": asdict(plan.limits)},
        "tools": {"llmc": tool_version(*_COMPILER_ROOMS), **toolchain},
        "target": plan.recipe.target.model_dump(mode="json"),
    }


def _hand_over(plan: _Plan, checkpoint: StageResult, final: Path, force: bool) -> StageResult:
    """Write the job that builds the engine where the GPU is."""
    return run_stage(
        final,
        lambda staging: plan.target.hand_over(
            Checkpoint.open(checkpoint.directory),
            staging,
            limits=plan.limits,
            options=plan.recipe.target,
        ),
        stage="gpu_build",
        force=force,
        **_engine_parts(plan, checkpoint),
    )


def _adopt(
    plan: _Plan, checkpoint: StageResult, job: StageResult, final: Path
) -> StageResult | None:
    """Return the engine that the job built, if it has been brought here."""
    return adopt(final, plan.target.job_id(job.directory), **_engine_parts(plan, checkpoint))
