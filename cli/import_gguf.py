"""`llmc import-gguf`: a GGUF file becomes a Hugging Face directory that `llmc build` takes."""

from pathlib import Path
from typing import Annotated

import typer


def import_gguf(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The GGUF file.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Directory to write.")
    ],
    dtype: Annotated[
        str, typer.Option(help="Type of the weights written: float32, float16 or bfloat16.")
    ] = "bfloat16",
) -> None:
    """Turn a GGUF file into a Hugging Face directory: dequantized weights, config, tokenizer.

    Example: [bold]llmc import-gguf SmolLM2-135M-Instruct.Q4_1.gguf -o smollm2[/]
    """
    from llmc.builders.hf import gguf
    from llmc.cli.render import ConsoleProgress
    from llmc.dtypes import WEIGHT_DTYPES
    from llmc.errors import RecipeError

    if dtype not in WEIGHT_DTYPES:
        raise RecipeError(f"--dtype: {dtype!r}, expected one of {', '.join(WEIGHT_DTYPES)}")
    made = gguf.import_gguf(file, output, dtype=dtype, progress=ConsoleProgress())
    typer.echo(f"{output}: {'written' if made else 'cached, inputs unchanged'}")
