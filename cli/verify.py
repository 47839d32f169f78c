"""`llmc verify`: measure an engine beside an unquantized one, and say whether it may be served."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmc.errors import CheckpointError, GateError

if TYPE_CHECKING:
    from llmc.gate.reference import Reference
    from llmc.log import Progress
    from llmc.recipes.schema import Recipe


def verify(
    output: Annotated[
        Path, typer.Argument(metavar="OUT", help="What `llmc build` wrote, or an engine directory.")
    ],
    reference: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Engine or Hugging Face model to compare with; default: the recipe's.",
        ),
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Text to measure on, a domain each; repeatable; default: recipe's."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Set a recipe field: gate.max_kl=0.1."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Measure again, even when nothing has changed.")
    ] = False,
    network: Annotated[
        bool,
        typer.Option(
            "--network",
            help="Evaluate the network TensorRT is given instead; OUT may be a checkpoint.",
        ),
    ] = False,
    typed: Annotated[
        bool,
        typer.Option("--typed", help="With --network: round to tensors' types, no verdict."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print gate.json.")] = False,
    cache: Annotated[
        Path, typer.Option(envvar="LLMC_CACHE", help="Folder for llmc's own files.")
    ] = Path("~/.cache/llmc"),
) -> None:
    """Measure an engine: KL divergence, perplexity and top-1 agreement with the unquantized model.

    Writes gate.json beside the engine, which `llmc serve` asks for, and a report with a plot.
    Thresholds are those of OUT/recipe.yaml, else by quantization. Fails with exit code 8 when a
    text misses one.

    With --network the checkpoint is lowered to TensorRT's network again, which is read back layer
    by layer and evaluated on this CPU beside a CPU engine of the same checkpoint (or --reference,
    an engine). Fails with exit code 8 when logits differ by more than rounding explains.

    Examples:

    llmc verify OUT

    llmc verify OUT --text prose.txt --text code.txt --set gate.max_kl=0.05

    llmc verify OUT/engine --reference ./smollm2 --json

    llmc verify --network OUT/checkpoint
    """
    if network:
        from llmc.cli.verify_network import verify_network

        verify_network(output, reference=reference, texts=text or [], typed=typed, as_json=as_json)
        return
    from llmc.cli.render import ConsoleProgress
    from llmc.gate.record import failure_text
    from llmc.gate.report import REPORT_NAME, summarize
    from llmc.gate.step import run_gate
    from llmc.log import NullProgress
    from llmc.stages import exclusive

    engine_dir, gate_dir = _find(output)
    recipe = _read_recipe(gate_dir.parent / "recipe.yaml", settings or [], text, reference)
    with exclusive(gate_dir.parent), ConsoleProgress() as bar:
        progress: Progress = NullProgress() if as_json else bar
        result = run_gate(
            engine_dir,
            gate_dir,
            recipe=recipe.gate,
            reference=_reference(engine_dir, recipe, cache.expanduser(), progress),
            progress=progress,
            force=force,
        )
    gate = result.gate
    if as_json:
        typer.echo(gate.model_dump_json(indent=2))
    else:
        for line in summarize(gate):
            typer.echo(line)
        state = "  cached" if result.stage.cached else ""
        typer.echo(f"{gate.verdict}: {gate_dir / REPORT_NAME}{state}")
    if gate.verdict == "failed":
        raise GateError(failure_text(gate, engine_dir))


def _find(output: Path) -> tuple[Path, Path]:
    """Return the engine directory that `output` is or has, intact, and where its report goes."""
    from llmc import artifacts
    from llmc.gate.reference import require_intact

    places = [output, output / "engine", output / "engine.failed"]
    for engine_dir in places:
        if (engine_dir / "config.json").is_file():
            require_intact(engine_dir, artifacts.read_manifest(engine_dir))
            return engine_dir, engine_dir.absolute().parent / "gate"
    raise CheckpointError(
        f"{output}: no engine in it", hint="make one with `llmc build MODEL -o OUT`"
    )


def _read_recipe(
    path: Path, settings: list[str], texts: list[Path] | None, reference: Path | None
) -> "Recipe":
    """Read the recipe beside an engine; an engine that was taken elsewhere needs a reference."""
    from llmc.recipes.loader import Override, load_recipe, parse_set

    overrides = [parse_set(setting) for setting in settings]
    if texts:
        names = [str(text) for text in texts]
        source = " ".join(f"--text {name}" for name in names)
        overrides.append(Override(path=("gate", "texts"), value=names, source=source))
    if reference is not None:
        value, source = str(reference), f"--reference {reference}"
        overrides.append(Override(path=("gate", "reference"), value=value, source=source))
    if path.is_file():
        return load_recipe(path, overrides)
    if reference is None:
        raise CheckpointError(
            f"{path}: missing, nothing else says what the engine was built from",
            hint="give --reference, an engine or a Hugging Face model",
        )
    model = Override(path=("model",), value=str(reference), source="--reference")
    return load_recipe(None, [model, *overrides])


def _reference(
    engine_dir: Path, recipe: "Recipe", cache: Path, progress: "Progress"
) -> "Reference | None":
    """Return what the recipe compares with; its model must be what the engine was built from."""
    from llmc import artifacts
    from llmc.builders.pipeline import digest_model
    from llmc.gate.reference import choose_reference

    if recipe.gate.reference is None:
        hint = "give --reference, an engine or a Hugging Face model"
        if not recipe.model.is_dir():
            raise CheckpointError(f"{recipe.model}: the recipe's model is not there", hint=hint)
        checkpoint = engine_dir.parent / "checkpoint"
        if (checkpoint / artifacts.MANIFEST_NAME).is_file():
            built_from = artifacts.read_manifest(checkpoint).inputs.get("model")
            if built_from != digest_model(recipe.model):
                message = f"{recipe.model}: not the model {checkpoint} was made from"
                raise CheckpointError(message, hint=hint)
    return choose_reference(
        engine_dir, recipe, cache=cache, progress=progress, workers=os.cpu_count() or 1
    )
