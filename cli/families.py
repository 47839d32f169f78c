"""`llmc families`: which models can be built, for which target, in which quantization."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

_NUM_PLUGIN_FORMATS = 4
_PLAIN = "none"
_SUBJECT = r"^:? ?(on compute capability \d+: )?(transformer\.layers\.\d+\.)?"
"""How a reason begins with what row, column and note say already."""

if TYPE_CHECKING:
    from llmc.builders.families.support import Support


def families(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say which model families can be built, for which target, in which quantization.

    Asked of the code itself, on a small model of each family.

    Examples:

    llmc families

    llmc families --json
    """
    from dataclasses import asdict

    from llmc.builders.families.support import support
    from llmc.cli.render import print_json, print_section

    found = support()
    if as_json:
        print_json([asdict(one) for one in found])
        return
    for one in found:
        lines = {"trtllm-build": _since(one)}
        lines |= {target: _cell(one, target) for target in one.reasons}
        print_section(one.architecture, lines)


def render_page() -> str:
    """Return docs/families.md."""
    from llmc.builders.families.support import support

    found = support()
    columns = [*found[0].reasons]
    notes: dict[str, dict[str, None]] = {}
    rows = [
        f"| {one.architecture} | {_since(one)} |"
        + "".join(f" {_noted(one.reasons[column], notes)} |" for column in columns)
        for one in found
    ]
    parts = [
        "# Model families",
        "Made by `make docs` from the code, as `llmc families` prints it; a test keeps it current."
        " trtllm-build: the first version of TensorRT-LLM, of those whose source was read (0.17,"
        " 0.20, 1.0), that builds from our checkpoint; where none up to 1.2 does, the checkpoint is"
        " for llmc's own targets. A target, with its compute capability, builds every quantization"
        " but those of the notes.",
        "\n".join(
            [
                f"| architecture | trtllm-build | {' | '.join(columns)} |",
                "|---" * (2 + len(columns)) + "|",
                *rows,
            ]
        ),
        "## Notes",
        "\n".join(
            f"{number}. {note if _PLAIN in algos else f'{_algos([*algos])}: {note}'}"
            for number, (note, algos) in enumerate(notes.items(), start=1)
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _noted(algos: dict[str, list[str]], notes: dict[str, dict[str, None]]) -> str:
    """Return a cell of the page. `notes`, reason → what it refuses, are numbered as they come up.

    Where the plain model cannot be built nothing can, and its reason is the one that is told.
    """
    told = {_PLAIN: algos[_PLAIN]} if algos[_PLAIN] else algos
    numbers: dict[int, None] = {}
    for algo, reasons in told.items():
        for reason in reasons[:1]:
            text = re.sub(_SUBJECT, "", reason.removeprefix(algo))
            notes.setdefault(text, {})[algo] = None
            numbers[[*notes].index(text) + 1] = None
    if not numbers:
        return "all"
    return f"{'none' if algos[_PLAIN] else 'all but'} {', '.join(map(str, sorted(numbers)))}"


def _since(one: "Support") -> str:
    return "no" if one.tensorrt_llm is None else f"since {one.tensorrt_llm}"


def _cell(one: "Support", target: str) -> str:
    algos = one.reasons[target]
    refused = [algo for algo, reasons in algos.items() if reasons]
    if not refused:
        return "all"
    return "none" if len(refused) == len(algos) else f"all but {_algos(refused)}"


def _algos(names: list[str]) -> str:
    """Return the names, the four plugin formats of SmoothQuant as one where all are there."""
    plugins = [name for name in names if name.endswith("_PLUGIN")]
    if len(plugins) == _NUM_PLUGIN_FORMATS:
        names = [*(name for name in names if name not in plugins), "W8A8_SQ_…_PLUGIN"]
    return ", ".join(names)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render_page(), encoding="utf-8")
