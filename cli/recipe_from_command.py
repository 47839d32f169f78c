"""`llmc recipe from-command`: old command lines as a recipe; docs/migrate.md of the same table."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from llmc.recipes.migration import Flag


def recipe_from_command(
    commands: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND...",
            help="Command lines of one build, each quoted: convert_checkpoint.py, quantize.py,"
            " trtllm-build, fill_template.py.",
        ),
    ],
) -> None:
    """Turn command lines of TensorRT-LLM's tools into a recipe, on stdout.

    Flags that no field of a recipe says are comments in it, with the reason; docs/migrate.md has
    all of them. A flag the tool does not have is an error.

    Examples:

    llmc recipe from-command "trtllm-build --checkpoint_dir ckpt --max_batch_size 8" > recipe.yaml

    llmc recipe from-command "quantize.py --model_dir m --qformat fp8" "trtllm-build --workers 2"
    """
    from llmc.recipes.commands import migrate

    typer.echo(migrate(commands).to_yaml(), nl=False)


def render_page() -> str:
    """Return docs/migrate.md."""
    from llmc.recipes.migration import TOOLS

    parts = [
        "# From TensorRT-LLM's command lines to a recipe",
        "Made by `make docs` from the table that `llmc recipe from-command` reads; a test keeps it"
        " current.",
        'One recipe takes the place of all of them: `llmc recipe from-command "quantize.py …"'
        ' "trtllm-build …" "fill_template.py …" > recipe.yaml`, then `llmc build recipe.yaml -o'
        " OUT`. A flag without a field is named in the recipe as a comment.",
    ]
    for tool, flags in TOOLS.items():
        kind = "placeholder" if tool == "fill_template.py" else "flag"
        rows = [f"| {kind} | recipe field | |", "|---|---|---|", *map(_row, flags)]
        parts += [f"## {tool}", "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


def _row(flag: "Flag") -> str:
    from llmc.recipes.migration import NOT_SAID

    names = ", ".join(f"`{name}`" for name in flag.names)
    values = [
        f"{old} → {'none' if new is NOT_SAID else new}"
        for old, new in flag.values.items()
        if not isinstance(new, bool)
    ]
    fixed = [str(flag.value).lower() if flag.value is True else str(flag.value)]
    said = fixed if flag.takes == "none" and flag.field else values
    note = "; ".join([*filter(None, [", ".join(said)]), *filter(None, [flag.note])])
    return f"| {names} | {f'`{flag.field}`' if flag.field else 'none'} | {note} |"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render_page(), encoding="utf-8")
