"""`llmc families`: which models can be built, for which target, in which quantization."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

_NUM_PLUGIN_FORMATS = 4

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
        lines = {"TensorRT-LLM": _since(one)}
        lines |= {target: _cell(one, target) for target in one.reasons}
        print_section(one.architecture, lines)


def render_page() -> str:
    """Return docs/families.md."""
    from llmc.builders.families.support import support

    found = support()
    targets = [*found[0].reasons]
    rows = [
        f"| {one.architecture} | {_since(one)} |"
        + "".join(f" {_cell(one, target)} |" for target in targets)
        for one in found
    ]
    header = f"| architecture | TensorRT-LLM | {' | '.join(targets)} |"
    reasons: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for one in found:
        for target, algos in one.reasons.items():
            for algo, why in algos.items():
                for text in why[:1]:
                    key = f"{target}: {text.removeprefix(algo).lstrip(': ')}"
                    refused, names = reasons.setdefault(key, ({}, {}))
                    refused[algo] = names[one.architecture] = None
    parts = [
        "# Model families",
        "Made by `make docs` from the code, as `llmc families` prints it; a test keeps it current."
        " TensorRT-LLM: the first version that has a converter for the architecture; where there is"
        " none up to 1.2, what llmc builds is for its own targets only. A target builds every"
        " quantization but those named.",
        "\n".join([header, "|---" * (2 + len(targets)) + "|", *rows]),
        "## Why not",
        "\n".join(
            f"- {_algos([*refused])}, {text}. {', '.join(names)}"
            for text, (refused, names) in reasons.items()
        )
        or "Everything can be built.",
    ]
    return "\n\n".join(parts) + "\n"


def _since(one: "Support") -> str:
    return "no converter" if one.tensorrt_llm is None else f"since {one.tensorrt_llm}"


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
