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
            help="Engine directory, of llmc or trtllm-build.",
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
        Path | None, typer.Option(metavar="FILE", help="Recipe whose `serve` part is taken.")
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
    not fit is listed, and nothing is written. An existing repository is replaced.

    Examples:

    llmc repo emit --from-engine /engines/llama-tp4 --tokenizer ./llama -o model_repo

    llmc repo emit --from-engine out/engine -o model_repo --set serve.engine_dir=/models/engine
    """
    from llmc import artifacts
    from llmc.model_repo.emit import emit_repository
    from llmc.model_repo.options import RepositoryOptions
    from llmc.recipes.loader import Override, load_recipe, parse_set
    from llmc.stages import run_stage, tool_version

    overrides = [parse_set(text) for text in settings or []]
    # A recipe needs a model; what is served here is built.
    model = Override(path=("model",), value=str(engine), source=f"--from-engine {engine}")
    serve = load_recipe(recipe, [model, *overrides]).serve
    options = RepositoryOptions(**serve.model_dump())
    config = engine / "config.json"
    run_stage(
        output,
        lambda staging: emit_repository(engine, staging, options, tokenizer_dir=tokenizer),
        stage="model_repo",
        inputs={"config.json": artifacts.digest_file(config) if config.is_file() else ""},
        recipe=serve.model_dump(mode="json"),
        tools={"llmc": tool_version("model_repo")},
        force=True,
    )
    for file in sorted(output.glob("*/config.pbtxt")):
        typer.echo(file)
