"""`llmc refit`: give an engine that was built without weights those of a checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmc.errors import CheckpointError

if TYPE_CHECKING:
    from llmc.checkpoint import Checkpoint


def refit(
    engine: Annotated[Path, typer.Argument(help="Engine directory, e.g. OUT/engine.")],
    checkpoint: Annotated[
        Path | None,
        typer.Argument(metavar="[CHECKPOINT]", help="Where weights are; default: beside ENGINE."),
    ] = None,
) -> None:
    """Write the weights of a checkpoint for an engine that was built without them.

    Target tensorrt-rtx, built with `--weights refit`: into ENGINE/rank<N>.weights.safetensors, in
    the form TensorRT wants; neither a GPU nor the Hugging Face model is needed. Target
    tensorrt-llm, built with target.strip_plan: by TensorRT-LLM, on the GPU the engine is for, into
    ENGINE itself.

    Examples:

    llmc refit OUT/engine

    llmc refit OUT/engine FINETUNED/checkpoint
    """
    from llmc.checkpoint import Checkpoint
    from llmc.cli.verify_network import find_checkpoint
    from llmc.runtime.engine import engine_target

    target = engine_target(engine)
    source = Checkpoint.open(checkpoint or find_checkpoint(engine))
    refit_target = _refit_tensorrt_llm if target == "tensorrt-llm" else _refit_tensorrt_rtx
    for path in refit_target(engine, source):
        typer.echo(f"{path}  {path.stat().st_size / 2**30:.2f} GiB")


def _refit_tensorrt_rtx(engine: Path, source: "Checkpoint") -> list[Path]:
    from llmc.builders.targets.tensorrt_rtx_module import import_tensorrt_rtx
    from llmc.builders.targets.tensorrt_toolkit import Toolkit
    from llmc.builders.targets.tensorrt_weights import write_refit_weights
    from llmc.cli.render import ConsoleProgress
    from llmc.runtime.engine import read_engine_config

    config = read_engine_config(engine)
    if config["llmc"].get("weights") != "refit":
        raise CheckpointError(
            f"{engine}: an engine of the target {config['llmc']['target']} that has its weights;"
            " nothing to refit"
        )
    if source.config.to_json() != config["pretrained_config"]:
        raise CheckpointError(
            f"{source.directory / 'config.json'}: not the one {engine} was built from",
            hint="give CHECKPOINT, one of the same model, dtype, mapping and quantization",
        )
    with ConsoleProgress() as progress:
        return write_refit_weights(
            Toolkit.start(import_tensorrt_rtx()),
            source,
            engine,
            max_seq_len=int(config["build_config"]["max_seq_len"]),
            progress=progress,
        )


def _refit_tensorrt_llm(engine: Path, source: "Checkpoint") -> list[Path]:
    from llmc.builders.targets.tensorrt_llm.refit import refit_in_place

    return refit_in_place(engine, source)
