"""An engine directory of TensorRT plans: what both tensorrt targets check and write.

One plan for each rank and group of compute capabilities, rank<N>.sm<capabilities>.engine, each by a
process of its own; config.json says what each is bound to and what was read in it.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import llmc
from llmc.builders.network import build_network
from llmc.builders.targets import BuildLimits
from llmc.builders.targets.tensorrt_compile import PROFILES, profile_shapes
from llmc.builders.targets.tensorrt_evidence import expected_of, gather
from llmc.builders.targets.tensorrt_network import Binding, Weights, lower_network
from llmc.builders.targets.tensorrt_toolkit import Toolkit
from llmc.builders.targets.tensorrt_worker import Job, build_in_worker
from llmc.checkpoint import Checkpoint, CheckpointConfig
from llmc.errors import BuildError, UnsupportedError
from llmc.log import Progress
from llmc.plugins import graph
from llmc.plugins.attention.tensorrt import is_fp8, is_fused
from llmc.plugins.graph import OpCall

log = logging.getLogger(__name__)

DTYPES = ("float16", "bfloat16")
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a target decides of its plans: `groups` of compute capabilities have one each.

    `is_readable`: whether tensorrt_plan reads plans of this target.
    """

    target: str
    groups: tuple[tuple[int, ...], ...]
    weights: Weights
    allow_emulated: bool
    is_readable: bool


def network_reasons(
    config: CheckpointConfig,
    limits: BuildLimits,
    target: str,
    *,
    fp8_with: Callable[[], Weights] | None,
) -> Iterator[str]:
    """Yield every reason, of any GPU, why the plans of a checkpoint cannot be built.

    `fp8_with`: says how weights are held, where an FP8 KV cache must come to attention in FP8.
    """
    if config.dtype not in DTYPES:
        yield (
            f"dtype: {config.dtype}, the {target} target has {' and '.join(DTYPES)}"
            " (no fused attention takes another)"
        )
    if config.mapping.pp_size > 1:
        yield f"mapping.pp: {config.mapping.pp_size}, the {target} target splits by tp only"
    try:
        networks = [build_network(config, rank) for rank in range(config.num_rank_files)]
    except UnsupportedError as error:
        yield from error.reasons or (error.message,)
        return
    for network in networks:
        for call in network.ops:
            yield from _call_reasons(call, limits)
            if fp8_with is not None and call.attrs.get("kv_quant") == "FP8":
                yield from _fp8_reasons(call, config.dtype, fp8_with)


def _fp8_reasons(call: OpCall, dtype: str, weights: Callable[[], Weights]) -> Iterator[str]:
    is_known = call.plugin == "attention"
    if is_known and is_fp8(call, dtype, embeds=weights() == "embed"):
        return
    why = "it is not one fused kernel"
    if is_known and is_fused(call, dtype):
        why = "a plan without weights does not know the cache's scale (--weights embed does)"
    yield (
        f"KV cache of FP8: attention would be in 16 bits, as would the cache: {why}"
        " (--allow-emulated builds it all the same)"
    )


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


def build_plans(
    source: Checkpoint | CheckpointConfig,
    output_dir: Path,
    *,
    limits: BuildLimits,
    choices: Choices,
    progress: Progress,
) -> dict[str, Any]:
    """Write config.json and every plan into the existing directory `output_dir`.

    Peak memory of embedding weights is about three times those of a rank; without, it depends on
    the number of layers. Returns time, memory and size of each plan. Raises: BuildError.
    """
    config = source.config if isinstance(source, Checkpoint) else source
    assert choices.weights == "refit" or isinstance(source, Checkpoint)
    plans = [
        _Plan(rank=rank, capabilities=capabilities)
        for rank in range(config.num_rank_files)
        for capabilities in choices.groups
    ]
    measured: dict[str, Any] = {}
    evidence: dict[str, Any] = {}
    for plan in plans:
        job = Job(
            target=choices.target,
            config=config.to_json(),
            checkpoint=str(source.directory) if isinstance(source, Checkpoint) else None,
            rank=plan.rank,
            capabilities=plan.capabilities,
            limits=asdict(limits),
            weights=choices.weights,
            output=str(output_dir / plan.file),
        )
        measured[plan.file] = _build_plan(job, plan, progress)
        evidence[plan.file] = _examine(output_dir / plan.file, config, plan, choices)
    described = [asdict(plan) | {"file": plan.file, **evidence[plan.file]} for plan in plans]
    text = json.dumps(_engine_config(config, limits, choices, described), indent=4)
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


def _examine(path: Path, config: CheckpointConfig, plan: _Plan, choices: Choices) -> dict[str, Any]:
    """Return what the plan shows. Raises: BuildError when that is not what it was built for."""
    if not choices.is_readable:
        log.warning("%s: plans of the %s target are not read", plan.file, choices.target)
        return {"not_readable": f"plans of the {choices.target} target are not read"}
    expected = expected_of(
        build_network(config, plan.rank), config.dtype, embeds=choices.weights == "embed"
    )
    facts, problems = gather(path, expected, PROFILES)
    if "not_readable" in facts:
        log.warning("%s: not readable, nothing is proven: %s", plan.file, facts["not_readable"])
    if problems and not choices.allow_emulated:
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


def _engine_config(
    config: CheckpointConfig, limits: BuildLimits, choices: Choices, plans: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the engine's config.json, in TensorRT-LLM's layout with one key of ours."""
    own = ("tokens_per_block", "kv_cache_dtype", "kernel_choices")
    build_config = {key: value for key, value in asdict(limits).items() if key not in own}
    build_config["plugin_config"] = {
        "tokens_per_block": limits.tokens_per_block,
        "paged_kv_cache": False,
        "remove_input_padding": False,
    }
    toolkit = Toolkit.of_target(choices.target)
    lowered = lower_network(
        toolkit,
        config,
        0,
        max_seq_len=limits.max_seq_len,
        weights="refit",
        table_inputs=choices.weights == "refit",
    )
    return {
        "version": llmc.__version__,
        "pretrained_config": config.to_json(),
        "build_config": build_config,
        "llmc": {
            "target": choices.target,
            "kv_cache_dtype": config.dtype,
            "tensorrt_version": toolkit.trt.__version__,
            "weights": choices.weights,
            "profiles": {name: profile_shapes(name, limits) for name in PROFILES},
            "bindings": [_binding(binding) for binding in lowered.bindings],
            "plans": plans,
        },
    }


def _binding(binding: Binding) -> dict[str, Any]:
    return {key: value for key, value in asdict(binding).items() if value is not None}
