"""The target `tensorrt-rtx`: plans for GeForce and RTX GPUs, built on a machine without one.

One plan for each rank and class of compute capabilities, rank<N>.sm<capabilities>.engine, each by a
process of its own; config.json says what each is bound to and what was read in it.
"""

import json
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import llmc
from llmc.builders.network import build_network
from llmc.builders.targets import BuildLimits
from llmc.builders.targets import tensorrt_capabilities as known
from llmc.builders.targets.tensorrt_compile import PROFILES, profile_shapes
from llmc.builders.targets.tensorrt_evidence import expected_of, gather
from llmc.builders.targets.tensorrt_network import Binding, Weights, lower_network
from llmc.builders.targets.tensorrt_rtx_module import import_tensorrt_rtx
from llmc.builders.targets.tensorrt_toolkit import Toolkit
from llmc.builders.targets.tensorrt_worker import Job, build_in_worker
from llmc.checkpoint import Checkpoint, CheckpointConfig, tensor_schema
from llmc.errors import BuildError, ToolchainError, UnsupportedError
from llmc.log import Progress
from llmc.plugins import graph
from llmc.plugins.graph import OpCall
from llmc.recipes.schema import TensorRtxTarget

log = logging.getLogger(__name__)

DTYPES = ("float16", "bfloat16")
_GIB = 1 << 30


def needs_weights(options: TensorRtxTarget) -> bool:
    """Say whether `build` wants a Checkpoint: told to refit, it builds from shapes alone."""
    return options.weights != "refit"


def unsupported(
    config: CheckpointConfig, limits: BuildLimits, options: TensorRtxTarget
) -> list[str]:
    """Return every reason this target cannot build such a checkpoint within such limits."""
    reasons = []
    try:
        import_tensorrt_rtx()
    except ToolchainError as error:
        reasons.append(f"{error.message}; {error.hint}")
    if not options.compute_capabilities:
        reasons.append("target.compute_capabilities: none, expected at least one")
    if config.dtype not in DTYPES:
        reasons.append(
            f"dtype: {config.dtype}, the tensorrt-rtx target has {' and '.join(DTYPES)}"
            " (no fused attention takes another)"
        )
    if config.mapping.pp_size > 1:
        reasons.append(
            f"mapping.pp: {config.mapping.pp_size}, the tensorrt-rtx target splits by tp only"
        )
    for capabilities in known.plans_of(options.compute_capabilities):
        reasons += _capability_reasons(config, options, capabilities)
    try:
        networks = [build_network(config, rank) for rank in range(config.num_rank_files)]
    except UnsupportedError as error:
        return [*reasons, *(error.reasons or (error.message,))]
    for network in networks:
        for call in network.ops:
            reasons += _call_reasons(call, limits)
    return list(dict.fromkeys(reasons))


def _capability_reasons(
    config: CheckpointConfig, options: TensorRtxTarget, capabilities: tuple[int, ...]
) -> list[str]:
    quantization, key = config.quantization, known.class_of(capabilities[0])
    algos = {layer.quant_algo for layer in quantization.quantized_layers.values()}
    names = " and ".join(map(str, capabilities))
    reasons = []
    for name in sorted(
        {config.dtype, *(algo for algo in algos or {quantization.quant_algo} if algo)}
    ):
        if key in known.REFUSED.get(name, {}):
            reasons.append(f"{name} on compute capability {names}: {known.REFUSED[name][key]}")
        elif key in known.EMULATED.get(name, {}) and not options.allow_emulated:
            reasons.append(
                f"{name} on compute capability {names}: {known.EMULATED[name][key]}"
                " (--allow-emulated builds it all the same)"
            )
    if quantization.kv_cache_quant_algo is not None and not options.allow_emulated:
        reasons.append(
            f"KV cache of {quantization.kv_cache_quant_algo}: {known.EMULATED_KV_CACHE}"
            " (--allow-emulated builds it all the same)"
        )
    return reasons


def _call_reasons(call: OpCall, limits: BuildLimits) -> list[str]:
    try:
        module = graph.part(call.plugin, "tensorrt")
    except ModuleNotFoundError:
        return [f"{call.name}: plugin {call.plugin!r} has no tensorrt lowering"]
    reasons: list[str] = module.unsupported(call, limits.max_seq_len)
    return reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    rank: int
    capabilities: tuple[int, ...]

    @property
    def file(self) -> str:
        return f"rank{self.rank}.sm{'_'.join(map(str, self.capabilities))}.engine"


def build(
    source: Checkpoint | CheckpointConfig,
    output_dir: Path,
    *,
    limits: BuildLimits,
    options: TensorRtxTarget,
    progress: Progress,
) -> dict[str, Any]:
    """Write config.json and every plan into the existing directory `output_dir`.

    Peak memory of embedding weights is about three times those of a rank; without, it is that of
    the largest table. Returns time, memory and size of each plan.
    Raises: UnsupportedError with all reasons of `unsupported`; BuildError.
    """
    config = source.config if isinstance(source, Checkpoint) else source
    reasons = unsupported(config, limits, options)
    if reasons:
        raise UnsupportedError("not for the tensorrt-rtx target", reasons)
    weights = _choose_weights(config, options)
    assert weights == "refit" or isinstance(source, Checkpoint)
    plans = [
        _Plan(rank=rank, capabilities=capabilities)
        for rank in range(config.num_rank_files)
        for capabilities in known.plans_of(options.compute_capabilities, refit=weights == "refit")
    ]
    measured: dict[str, Any] = {}
    evidence: dict[str, Any] = {}
    for plan in plans:
        job = Job(
            config=config.to_json(),
            checkpoint=str(source.directory) if isinstance(source, Checkpoint) else None,
            rank=plan.rank,
            capabilities=plan.capabilities,
            limits=asdict(limits),
            weights=weights,
            output=str(output_dir / plan.file),
        )
        measured[plan.file] = _build_plan(job, plan, progress)
        evidence[plan.file] = _examine(output_dir / plan.file, config, plan, options)
    described = [asdict(plan) | {"file": plan.file, **evidence[plan.file]} for plan in plans]
    text = json.dumps(_engine_config(config, limits, weights, described), indent=4)
    (output_dir / "config.json").write_text(text + "\n", encoding="utf-8")
    return {"plans": measured}


def _build_plan(job: Job, plan: _Plan, progress: Progress) -> dict[str, Any]:
    shown = _Steps(progress, f"build {plan.file}")
    built, notes = build_in_worker(job, shown)
    shown.finish()
    for note in notes:
        log.warning("%s: %s", plan.file, note)
    log.info(
        "%s: %.1f s, %.1f GiB of memory, %.1f MiB",
        *(plan.file, built.seconds, built.peak_memory_bytes / _GIB, built.size_bytes / (1 << 20)),
    )
    return asdict(built)


def _examine(
    path: Path, config: CheckpointConfig, plan: _Plan, options: TensorRtxTarget
) -> dict[str, Any]:
    """Return what the plan shows. Raises: BuildError when that is not what it was built for."""
    expected = expected_of(build_network(config, plan.rank), config.dtype)
    facts, problems = gather(path, expected, PROFILES)
    if "not_readable" in facts:
        log.warning("%s: not readable, nothing is proven: %s", plan.file, facts["not_readable"])
    if problems and not options.allow_emulated:
        raise BuildError(
            "\n  - ".join([f"{plan.file}: the plan does not do what it was built for", *problems]),
            hint="--allow-emulated keeps it all the same",
        )
    for problem in problems:
        log.warning("%s: %s", plan.file, problem)
    return facts


class _Steps:
    """TensorRT's nested phases as one bar: the phase with the most steps is what takes the time."""

    def __init__(self, progress: Progress, description: str) -> None:
        self._progress, self._description = progress, description
        self._phase, self._done, self._total = "", 0, 0
        self._started = time.monotonic()

    def __call__(self, phase: str, done: int, total: int) -> None:
        if total > self._total:
            self._phase, self._done, self._total = phase, 0, total
            self._progress.start(self._description, total, "steps")
        if phase == self._phase and done > self._done:
            self._progress.advance(done - self._done)
            self._done = done

    def finish(self) -> None:
        if self._total:
            self._progress.finish()


def _choose_weights(config: CheckpointConfig, options: TensorRtxTarget) -> Weights:
    if options.weights != "auto":
        return options.weights
    ranks = range(config.num_rank_files)
    largest = max(
        sum(info.num_bytes for info in tensor_schema(config, rank).values()) for rank in ranks
    )
    if largest <= options.strip_above_gib * _GIB:
        return "embed"
    log.info(
        "weights: refit, as a rank has %.1f GiB of them and target.strip_above_gib is %g: plans"
        " come without, and `llmc refit` puts them in on the GPU host",
        *(largest / _GIB, options.strip_above_gib),
    )
    return "refit"


def _engine_config(
    config: CheckpointConfig, limits: BuildLimits, weights: Weights, plans: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the engine's config.json, in TensorRT-LLM's layout with one key of ours."""
    own = ("tokens_per_block", "kv_cache_dtype", "kernel_choices")
    build_config = {key: value for key, value in asdict(limits).items() if key not in own}
    build_config["plugin_config"] = {
        "tokens_per_block": limits.tokens_per_block,
        "paged_kv_cache": False,
        "remove_input_padding": False,
    }
    trt = import_tensorrt_rtx()
    lowered = lower_network(
        Toolkit.start(trt), config, 0, max_seq_len=limits.max_seq_len, weights="refit"
    )
    return {
        "version": llmc.__version__,
        "pretrained_config": config.to_json(),
        "build_config": build_config,
        "llmc": {
            "target": "tensorrt-rtx",
            "kv_cache_dtype": config.dtype,
            "tensorrt_version": trt.__version__,
            "weights": weights,
            "profiles": {name: profile_shapes(name, limits) for name in PROFILES},
            "bindings": [_binding(binding) for binding in lowered.bindings],
            "plans": plans,
        },
    }


def _binding(binding: Binding) -> dict[str, Any]:
    return {key: value for key, value in asdict(binding).items() if value is not None}
