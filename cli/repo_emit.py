"""`llmc repo emit`: a Triton repository for an engine that is there already."""

from pathlib import Path
from typing import Annotated

import typer


def repo_emit(
    engine: Annotated[
        Path,
        typer.Option(
            "--from-engine",
            metavar="DIR",
            help="Engine directory, of llmc or trtllm-build, or checkpoint.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="The repository to write.")
    ],
    tokenizer: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory of the tokenizer, else the engine's."),
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Recipe; its `serve` part is taken.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Set any recipe field; repeatable."),
    ] = None,
) -> None:
    """Write the Triton repository of an engine, wherever it was built.

    The engine's config.json says what it is: an engine of TensorRT-LLM 0.20 to 1.2 gets NVIDIA's
    inflight_batcher_llm with the C++ backend, one of llmc's own targets llmc's executor. Version,
    ranks and limits are read from it and held against the recipe's `serve`; everything that does
    not fit is listed, and nothing is written. A Hugging Face checkpoint gets the model of
    TensorRT-LLM's LLM API, 1.3 and later, split and limited as the recipe's `mapping` and `build`
    say. An existing repository is replaced.

    Examples:

    llmc repo emit --from-engine /engines/llama-tp4 --tokenizer ./llama -o model_repo

    llmc repo emit --from-engine out/engine -o model_repo --set serve.engine_dir=/models/engine

    llmc repo emit --from-engine ./llama-fp8 -o model_repo --set mapping.tp=4
    """
    from llmc import artifacts
    from llmc.cli.repository import part_that_matters, write_repository
    from llmc.recipes.loader import Override, load_recipe, parse_set
    from llmc.stages import run_stage, tool_version

    overrides = [parse_set(text) for text in settings or []]
    # A recipe needs a model; what is served here is built.
    model = Override(path=("model",), value=str(engine), source=f"--from-engine {engine}")
    loaded = load_recipe(recipe, [model, *overrides])
    config = engine / "config.json"
    run_stage(
        output,
        lambda staging: write_repository(loaded, engine, staging, tokenizer_dir=tokenizer),
        stage="model_repo",
        inputs={"config.json": artifacts.digest_file(config) if config.is_file() else ""},
        recipe=part_that_matters(loaded, engine),
        tools={"llmc": tool_version("model_repo")},
        force=True,
    )
    for file in sorted(output.glob("*/config.pbtxt")):
        typer.echo(file)
