"""The gate as a stage of a build: measure or reuse, judge, report, keep a failed engine aside."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from llmc import artifacts
from llmc.gate.corpus import DEFAULT_TEXTS, GateText, read_texts
from llmc.gate.measure import POSITION_STEP, measure, window_tokens
from llmc.gate.record import (
    ASIDE_SUFFIX,
    GATE_NAME,
    MEASUREMENT_NAME,
    Gate,
    Measurement,
    read_gate,
    read_measurement,
    write_record,
)
from llmc.gate.reference import Reference, choose_reference, open_engine, read_config
from llmc.gate.report import write_report
from llmc.gate.sensitivity import read_sensitivity
from llmc.gate.stand_in import checkpoint_behind, stand_in
from llmc.gate.thresholds import judge, resolve_thresholds
from llmc.log import Progress
from llmc.recipes.schema import GateRecipe, Recipe
from llmc.runtime.engine import require_machine
from llmc.runtime.tokenizer import Tokenizer
from llmc.stages import StageResult, run_stage, tool_version

log = logging.getLogger(__name__)

_MEASURING_ROOMS = ("gate", "runtime", "plugins")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """The stage that measured, perhaps earlier, and the verdict by the thresholds of now."""

    stage: StageResult
    gate: Gate


def gate_build(
    recipe: Recipe,
    output: Path,
    *,
    cache: Path,
    workers: int,
    progress: Progress,
    force: bool = False,
) -> GateResult:
    """Gate `output`/engine, built by `recipe`, against what the recipe compares with.

    References are kept in `cache`. Raises: see `run_gate` and `choose_reference`.
    """
    engine_dir = output / "engine"
    reference = choose_reference(
        engine_dir, recipe, cache=cache, progress=progress, workers=workers
    )
    return run_gate(
        engine_dir,
        output / "gate",
        recipe=recipe.gate,
        reference=reference,
        progress=progress,
        force=force,
    )


def run_gate(
    engine_dir: Path,
    gate_dir: Path,
    *,
    recipe: GateRecipe,
    reference: Reference | None,
    progress: Progress,
    force: bool = False,
) -> GateResult:
    """Measure an intact engine, write `engine_dir`/gate.json and the report in `gate_dir`.

    Measurements of the same engine, reference and texts are reused; other thresholds only judge
    them anew. A failed verdict is returned, not raised.
    Raises: NotRunnableHereError before anything is made, RecipeError, CheckpointError or
    UnsupportedError for what cannot be measured.
    """
    manifest = artifacts.read_manifest(engine_dir)
    texts = read_texts(recipe.texts or DEFAULT_TEXTS)
    inputs = {"engine": manifest.content_digest}
    inputs |= {f"text {text.name}": text.sha256 for text in texts}
    if reference is not None:
        inputs["reference"] = reference.facts.key

    def work(staging: Path) -> None:
        with ExitStack() as stack:
            behind, candidate = checkpoint_behind(engine_dir), engine_dir
            if behind is None:
                require_machine(engine_dir)
            else:
                candidate = stack.enter_context(stand_in(behind, staging, progress))
                log.info("%s: measured on the CPU, from the same checkpoint", engine_dir)
            found = _measure(
                candidate,
                Tokenizer.open(engine_dir),
                manifest.content_digest,
                reference,
                texts,
                max_tokens=recipe.max_tokens,
                progress=progress,
            )
        write_record(staging / MEASUREMENT_NAME, found)

    stage = run_stage(
        gate_dir,
        work,
        stage="gate",
        inputs=inputs,
        recipe={"max_tokens": recipe.max_tokens},
        tools={"llmc": tool_version(*_MEASURING_ROOMS)},
        force=force,
    )
    measurement = read_measurement(gate_dir)
    gate = judge(measurement, resolve_thresholds(measurement, recipe))
    quantization = read_config(engine_dir).quantization
    layers = read_sensitivity(engine_dir, gate_dir.parent, quantization)
    write_report(gate, gate_dir, layers)
    write_record(engine_dir / GATE_NAME, gate)
    return GateResult(stage=stage, gate=gate)


@contextmanager
def failed_kept_aside(output: Path, *, allow_ungated: bool = False) -> Iterator[None]:
    """Let a build reuse an engine that failed before, and put a failed one aside at its end.

    OUT/engine.failed becomes OUT/engine when there is none; on the way out OUT/engine, marked as
    failed by its gate.json, becomes OUT/engine.failed, unless `allow_ungated`.
    """
    engine, aside = output / "engine", output / f"engine{ASIDE_SUFFIX}"
    if aside.is_dir() and not engine.exists():
        aside.rename(engine)
    try:
        yield
    finally:
        gate = read_gate(engine) if (engine / GATE_NAME).is_file() else None
        if gate is not None and gate.verdict == "failed" and not allow_ungated:
            with artifacts.stage(aside) as staging:
                staging.rmdir()
                engine.rename(staging)
            log.warning("the engine is kept aside: %s", aside)


def _measure(
    engine_dir: Path,
    tokenizer: Tokenizer,
    engine_digest: str,
    reference: Reference | None,
    texts: Sequence[GateText],
    *,
    max_tokens: int,
    progress: Progress,
) -> Measurement:
    config = read_config(engine_dir)
    with ExitStack() as stack:
        wanted = None if reference is None else stack.enter_context(closing(reference.open()))
        candidate = stack.enter_context(closing(open_engine(engine_dir)))
        engines = [candidate] if wanted is None else [candidate, wanted]
        return Measurement(
            engine=engine_digest,
            quant_algo=config.quantization.quant_algo,
            kv_cache_quant_algo=config.quantization.kv_cache_quant_algo,
            dtype=config.dtype,
            reference=None if reference is None else reference.facts,
            window_tokens=window_tokens(*(engine.limits for engine in engines)),
            position_step=POSITION_STEP,
            texts=measure(
                wanted, candidate, tokenizer, texts, max_tokens=max_tokens, progress=progress
            ),
        )
