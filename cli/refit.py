"""`llmc refit`: give an engine whose plans were built without weights those of its checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

from llmc.errors import CheckpointError


def refit(
    engine: Annotated[Path, typer.Argument(help="Engine directory, e.g. OUT/engine.")],
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Checkpoint to take weights from; default: beside it."),
    ] = None,
) -> None:
    """Write the weights that plans built with `--weights refit` are given when they are loaded.

    They go into ENGINE/rank<N>.weights.safetensors, in the form TensorRT wants. Neither a GPU nor
    the Hugging Face model is needed.

    Example:

    llmc refit OUT/engine --checkpoint OUT/checkpoint
    """
    from llmc.builders.targets.tensorrt_rtx_module import import_tensorrt_rtx
    from llmc.builders.targets.tensorrt_toolkit import Toolkit
    from llmc.builders.targets.tensorrt_weights import write_refit_weights
    from llmc.checkpoint import Checkpoint
    from llmc.cli.render import ConsoleProgress
    from llmc.cli.verify_network import find_checkpoint
    from llmc.runtime.engine import engine_target, read_engine_config

    config = read_engine_config(engine)
    target = engine_target(engine)
    if config["llmc"].get("weights") != "refit":
        raise CheckpointError(
            f"{engine}: an engine of the target {target} that has its weights; nothing to refit"
        )
    source = Checkpoint.open(checkpoint or find_checkpoint(engine))
    if source.config.to_json() != config["pretrained_config"]:
        raise CheckpointError(
            f"{source.directory / 'config.json'}: not the one {engine} was built from",
            hint="give --checkpoint, one of the same model, dtype, mapping and quantization",
        )
    with ConsoleProgress() as progress:
        written = write_refit_weights(
            Toolkit.start(import_tensorrt_rtx()),
            source,
            engine,
            max_seq_len=int(config["build_config"]["max_seq_len"]),
            progress=progress,
        )
    for path in written:
        typer.echo(f"{path}  {path.stat().st_size / 2**30:.2f} GiB")
