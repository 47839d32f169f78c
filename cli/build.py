"""`llmc build`: flags and recipe in, the three artifacts of a build out."""

import logging
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmc.errors import GateError, LlmcError, RecipeError

if TYPE_CHECKING:
    from llmc.gate.record import Gate
    from llmc.recipes.schema import Recipe
    from llmc.stages import StageResult

log = logging.getLogger(__name__)

FLAGS: dict[str, str] = {
    "--model": "model",
    "--dtype": "dtype",
    "--quant": "quantization.algo",
    "--target-bits": "quantization.target_bits",
    "--kv-cache": "quantization.kv_cache",
    "--calibration": "quantization.calibration.data",
    "--layout": "quantization.layout",
    "--tp": "mapping.tp",
    "--pp": "mapping.pp",
    "--moe-tp": "mapping.moe_tp",
    "--moe-ep": "mapping.moe_ep",
    "--target": "target.kind",
    "--compute-capability": "target.compute_capabilities",
    "--weights": "target.weights",
    "--allow-emulated": "target.allow_emulated",
}
"""Named flag → the recipe field it sets; every other field is set with --set."""


class Until(StrEnum):
    """The stages, in order."""

    checkpoint = "checkpoint"
    engine = "engine"
    gate = "gate"
    repo = "repo"


def build(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_RECIPE",
            help="Hugging Face directory, recipe.yaml or preset: cpu-w8a16, cpu-bf16, cpu-fp32.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT", help="Directory of the artifacts.")
    ],
    until: Annotated[Until, typer.Option(help="Stop after this stage.")] = Until.repo,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Hugging Face directory, for a recipe.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Type of unquantized weights: float32, float16, bfloat16.")
    ] = None,
    quant: Annotated[
        str | None,
        typer.Option(
            metavar="ALGO", help="Quantization of the weights, e.g. W8A16; auto: per layer."
        ),
    ] = None,
    target_bits: Annotated[
        float | None, typer.Option(metavar="BITS", help="auto: most bits a weight has on average.")
    ] = None,
    kv_cache: Annotated[
        str | None, typer.Option(metavar="ALGO", help="Quantization of the KV cache: INT8, FP8.")
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Text or JSONL to calibrate on, instead of llmc's own."),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(help="GPU generation packed weights are permuted for: sm80, sm90."),
    ] = None,
    tp: Annotated[int | None, typer.Option(help="Tensor parallel size.")] = None,
    pp: Annotated[int | None, typer.Option(help="Pipeline parallel size.")] = None,
    moe_tp: Annotated[int | None, typer.Option(help="Tensor parallel size of experts.")] = None,
    moe_ep: Annotated[int | None, typer.Option(help="Expert parallel size.")] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="What the engine runs on: cpu, tensorrt-rtx, tensorrt, tensorrt-llm.",
        ),
    ] = None,
    compute_capability: Annotated[
        list[int] | None,
        typer.Option(metavar="NN", help="GPU to build for, e.g. 89; repeatable for tensorrt-rtx."),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="tensorrt-rtx: weights in the plan: auto, embed, refit.")
    ] = None,
    allow_emulated: Annotated[
        bool | None,
        typer.Option(
            "--allow-emulated", help="tensorrt-rtx: build what the GPU computes in 16 bits anyway."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Set any recipe field; repeatable."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Rank files written at once; default: all cores.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Run every stage, even when nothing has changed.")
    ] = False,
    allow_ungated: Annotated[
        bool,
        typer.Option(
            "--allow-ungated", help="Emit the repository of an engine that fails its gate."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    cache: Annotated[
        Path, typer.Option(envvar="LLMC_CACHE", help="Folder for llmc's own files.")
    ] = Path("~/.cache/llmc"),
) -> None:
    """Convert, quantize and compile a model; measure it; emit its Triton repository.

    Writes OUT/checkpoint, OUT/engine, OUT/gate, OUT/model_repo and OUT/recipe.yaml. A stage whose
    inputs, recipe and tools have not changed is reused ("cached"). A flag wins over --set, --set
    over the recipe. An engine that is too far from the unquantized model fails its gate: it is kept
    in OUT/engine.failed, and the exit code is 8. One for a GPU that is not here is built, not gated
    and not emitted.

    Examples:

    llmc build ./smollm2 -o out --quant W8A16

    llmc build ./smollm2 -o out --quant W4A16_AWQ --kv-cache INT8 --calibration chats.jsonl

    llmc build ./smollm2 -o out --quant auto --target-bits 6.0

    llmc build ./smollm2 -o out --target tensorrt-rtx --compute-capability 89

    llmc build ./smollm2 -o out --target tensorrt-llm --set target.version=1.2 --set target.gpu=L40S

    llmc build ./smollm2 -o out --target tensorrt-llm --set target.version=1.3 --quant FP8

    llmc build cpu-w8a16 --model ./smollm2 -o out --set build.max_batch_size=16

    llmc build recipe.yaml -o out --until checkpoint --tp 3
    """
    from llmc.cli.render import format_bytes, print_json

    values: dict[str, Any] = {
        "--model": None if model is None else str(model),
        "--dtype": dtype,
        "--quant": quant,
        "--target-bits": target_bits,
        "--kv-cache": kv_cache,
        "--calibration": None if calibration is None else str(calibration),
        "--layout": layout,
        "--tp": tp,
        "--pp": pp,
        "--moe-tp": moe_tp,
        "--moe-ep": moe_ep,
        "--target": target,
        "--compute-capability": compute_capability or None,
        "--weights": weights,
        "--allow-emulated": allow_emulated or None,
    }
    recipe = read_source(source, settings or [], values)
    if until is Until.repo and not (recipe.gate.enabled or allow_ungated):
        raise RecipeError(
            "gate.enabled: False, and no repository is emitted of an engine that was not measured",
            hint="stop before with --until engine, or insist with --allow-ungated",
        )
    results, gate = run(
        recipe,
        output,
        until=until,
        workers=workers or os.cpu_count() or 1,
        force=force,
        quiet=as_json,
        allow_ungated=allow_ungated,
        cache=cache.expanduser(),
    )
    if as_json:
        stages = [_as_data(result) for result in results]
        print_json({"output": str(output), "stages": stages, "gate": _verdict(gate)})
    elif gate is None or gate.verdict == "passed" or allow_ungated:
        for result in results:
            size = format_bytes(result.manifest.num_bytes)
            state = "cached" if result.cached else f"{result.seconds:.1f} s"
            typer.echo(f"{result.manifest.stage:<11} {result.directory}  {size}  {state}")
    if gate is not None:
        _judge(gate, output, allow_ungated=allow_ungated)


def read_source(source: str, settings: list[str], values: dict[str, Any]) -> "Recipe":
    """Turn the argument, `--set` texts and named flags into a recipe.

    Raises: RecipeError when the argument is no directory, recipe or preset, or anything is invalid.
    """
    from llmc.recipes import PRESETS
    from llmc.recipes.loader import Override, flag_overrides, load_recipe, parse_set, preset_path

    overrides: list[Override] = []
    path: Path | None = None
    if Path(source).is_dir():
        overrides.append(Override(path=("model",), value=source, source=source))
    elif Path(source).is_file():
        path = Path(source)
        if path.suffix not in (".yaml", ".yml"):
            hint = "turn GGUF into a directory with `llmc import-gguf`"
            raise RecipeError(f"{source}: not a recipe, expected .yaml or .yml", hint=hint)
    elif source in PRESETS:
        path = preset_path(source)
    else:
        raise RecipeError(
            f"{source}: no such directory or recipe file, and not a preset ({', '.join(PRESETS)})",
            hint="a hub id is not downloaded: download the model and give its directory",
        )
    overrides += [parse_set(text) for text in settings]
    asked = values.get("--compute-capability")
    if asked is None:
        return load_recipe(path, overrides + flag_overrides(FLAGS, values))
    without = flag_overrides(FLAGS, {**values, "--compute-capability": None})
    target = load_recipe(path, overrides + without).target.kind
    field, value = capability_field(target, asked)
    flag = {"--compute-capability": field}
    return load_recipe(
        path, overrides + without + flag_overrides(flag, {"--compute-capability": value})
    )


def capability_field(target: str, asked: list[int]) -> tuple[str, list[int] | int]:
    """Return the field that `--compute-capability` sets of `target`, and its value.

    Raises: RecipeError for a target without GPUs, or several GPUs where there can be one.
    """
    flag = f"--compute-capability {' '.join(map(str, asked))}"
    if target == "tensorrt-rtx":
        return FLAGS["--compute-capability"], asked
    if target not in ("tensorrt", "tensorrt-llm"):
        raise RecipeError(f"{flag}: the target {target} is for no GPU")
    if len(asked) > 1:
        raise RecipeError(f"{flag}: an engine of {target} is for one GPU, expected one number")
    return "target.compute_capability", asked[0]


def run(
    recipe: "Recipe",
    output: Path,
    *,
    until: Until,
    workers: int,
    force: bool,
    quiet: bool,
    allow_ungated: bool,
    cache: Path,
) -> "tuple[list[StageResult], Gate | None]":
    """Run the stages up to `until` and write OUT/recipe.yaml.

    Returns what each made or reused, and the verdict of the gate, if it was asked. No repository is
    emitted of an engine that failed, unless `allow_ungated`.
    """
    from llmc.builders import pipeline
    from llmc.builders.adoption import is_adoptable
    from llmc.cli.render import ConsoleProgress
    from llmc.gate.stand_in import is_hugging_face
    from llmc.gate.step import failed_kept_aside, gate_build
    from llmc.log import NullProgress, Progress
    from llmc.runtime.engine import NotRunnableHereError
    from llmc.stages import exclusive, require_replaceable

    for name in ("sensitivity", "checkpoint", "engine", "gpu_build", "gate", "model_repo"):
        if not is_adoptable(output / name):
            require_replaceable(output / name)
    results: list[StageResult] = []
    aside = failed_kept_aside(output, allow_ungated=allow_ungated)
    with exclusive(output), aside, ConsoleProgress() as bar:
        progress: Progress = NullProgress() if quiet else bar
        pipeline.build(
            recipe,
            output,
            until="checkpoint" if until is Until.checkpoint else "engine",
            progress=progress,
            report=results.append,
            workers=workers,
            force=force,
        )
        _write_recipe(recipe, output / "recipe.yaml")
        engine, gate = results[-1], None
        if engine.manifest.stage == "gpu_build":
            log.info(
                "gate and repository: not before %s has run and %s is what it built; then build"
                " again",
                *(engine.directory / "build.sh", output / "engine"),
            )
            return results, None
        if until in (Until.gate, Until.repo) and recipe.gate.enabled:
            try:
                gated = gate_build(
                    recipe, output, cache=cache, workers=workers, progress=progress, force=force
                )
            except NotRunnableHereError as error:
                # Built for another machine, as told: no failure, unless the gate itself was wanted.
                if until is Until.gate:
                    raise
                log.warning("%s", _ungated_text(error, output))
            else:
                results.append(gated.stage)
                gate = gated.gate
                _log_measured(gate)
        if until is Until.repo and is_hugging_face(engine.directory):
            log.info(
                "trtllm-serve %s --tp_size %d --pp_size %d --max_batch_size %d --max_num_tokens %d",
                *(engine.directory, recipe.mapping.tp, recipe.mapping.pp),
                *(recipe.build.max_batch_size, recipe.build.max_num_tokens),
            )
        may_emit = allow_ungated or (gate is not None and gate.verdict == "passed")
        if until is Until.repo and may_emit:
            results.append(_emit(recipe, output, engine, force=force, allow_ungated=allow_ungated))
    return results, gate


def _log_measured(gate: "Gate") -> None:
    from llmc.gate.report import summarize

    for line in summarize(gate):
        log.info("gate %s: %s", gate.verdict, line)


def _ungated_text(error: LlmcError, output: Path) -> str:
    """Return why an engine for another machine was not measured, and what may be done."""
    text = f"not gated, and not emitted unless --allow-ungated: {error.message}"
    if (output / "checkpoint").is_dir():
        text += f"; `llmc verify --network {output}/checkpoint` measures its network here"
    return text


def _judge(gate: "Gate", output: Path, *, allow_ungated: bool) -> None:
    """Raise GateError when the engine failed, unless `allow_ungated`."""
    from llmc.gate.record import failure_text

    if gate.verdict == "passed":
        return
    if allow_ungated:
        log.warning("%s", failure_text(gate, output / "engine"))
        return
    raise GateError(
        failure_text(gate, output / "engine.failed"),
        hint=f"{output}/gate/report.md has more; quantize in another way, allow more by --set"
        " gate.max_kl=…, or insist with --allow-ungated",
    )


def _write_recipe(recipe: "Recipe", path: Path) -> None:
    """Write the resolved recipe, unless what is there says the same: it may have comments."""
    from llmc import __version__
    from llmc.recipes.loader import dump_recipe, load_recipe

    try:
        if path.is_file() and load_recipe(path) == recipe:
            return
    except RecipeError:
        pass  # of an older llmc, or edited since
    staging = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    text = dump_recipe(recipe, f"what `llmc build` {__version__} built here")
    staging.write_text(text, encoding="utf-8")
    staging.replace(path)


def _emit(
    recipe: "Recipe", output: Path, engine: "StageResult", *, force: bool, allow_ungated: bool
) -> "StageResult":
    """Emit the repository. Raises: GateError unless the engine passed its gate or one insists."""
    from llmc.cli.repository import part_that_matters, write_repository
    from llmc.gate.record import require_passed
    from llmc.stages import run_stage, tool_version

    if not allow_ungated:
        # Whatever led here: what is emitted is what gate.json is about.
        require_passed(engine.directory)
    return run_stage(
        output / "model_repo",
        lambda staging: write_repository(recipe, engine.directory, staging),
        stage="model_repo",
        inputs={"engine": engine.manifest.content_digest},
        recipe=part_that_matters(recipe, engine.directory),
        tools={"llmc": tool_version("model_repo")},
        force=force,
    )


def _as_data(result: "StageResult") -> dict[str, Any]:
    return {
        "stage": result.manifest.stage,
        "directory": str(result.directory),
        "cached": result.cached,
        "seconds": round(result.seconds, 3),
        "size_bytes": result.manifest.num_bytes,
        "key": result.manifest.key,
        "files": sorted(result.manifest.files),
    }


def _verdict(gate: "Gate | None") -> dict[str, Any] | None:
    """Return the gate's part of the JSON output: the verdict and every number it rests on."""
    if gate is None:
        return None
    checks = [check.model_dump() for check in gate.checks]
    return {"verdict": gate.verdict, "checks": checks}
