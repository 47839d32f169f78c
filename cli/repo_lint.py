"""`llmc repo lint`: the mistakes in a Triton repository, before a server meets them."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from llmc.errors import BuildError, CheckpointError


class Client(StrEnum):
    """How clients will ask."""

    stream = "stream"
    generate = "generate"


def repo_lint(
    repository: Annotated[Path, typer.Argument(help="Model repository, whoever wrote it.")],
    client: Annotated[
        Client | None,
        typer.Option(help="Check that clients which stream, or ask by /generate, can be served."),
    ] = None,
    elsewhere: Annotated[
        bool,
        typer.Option(
            "--elsewhere", help="Absolute paths are of another machine; do not look for them."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find the mistakes in a Triton repository, one line each, with file and field.

    Works on repositories of llmc and on those filled from NVIDIA's templates: placeholders left,
    parameters that are unknown, misspelt or of another version, wrong values, paths that do not
    exist, engines that do not fit, ensembles that do not match their models, what Triton refuses.
    Exit code 6 when there are any.

    Examples:

    llmc repo lint out/model_repo

    llmc repo lint /opt/triton/models --client stream --elsewhere
    """
    from llmc.cli.render import print_json
    from llmc.model_repo.lint import find_mistakes

    if not repository.is_dir():
        raise CheckpointError(f"{repository}: no directory, expected a model repository")
    found = find_mistakes(
        repository, elsewhere=elsewhere, client=client.value if client is not None else None
    )
    if as_json:
        print_json(found)
    else:
        for line in found or ["nothing found"]:
            typer.echo(line)
    if found:
        mistakes = "mistake" if len(found) == 1 else "mistakes"
        raise BuildError(f"{repository}: {len(found)} {mistakes}")
