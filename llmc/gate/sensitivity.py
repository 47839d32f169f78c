"""Layer sensitivity in the report: what each format costs each layer alone, and what was chosen."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llmc.builders.quantize.mixed import (
    SENSITIVITIES_NAME,
    Group,
    Option,
    Sensitivities,
    average_bits,
)
from llmc.checkpoint import MIXED_PRECISION, Quantization
from llmc.gate.plot import Points, line_chart

PLOT_NAME = "kl-by-layer.svg"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSensitivity:
    """What was measured of each group of linears, and the option its engine has, in that order."""

    measured: Sensitivities
    chosen: tuple[Option, ...]


def read_sensitivity(build_dir: Path, quantization: Quantization) -> LayerSensitivity | None:
    """Return what the build of an engine with `quantization` was chosen by.

    None for an engine that is not mixed, or not of what `build_dir`/sensitivity is about.
    """
    directory = build_dir / "sensitivity"
    mixed = quantization.quant_algo == MIXED_PRECISION
    if not mixed or not (directory / SENSITIVITIES_NAME).is_file():
        return None
    measured = Sensitivities.read(directory)
    chosen = [_chosen(group, quantization) for group in measured.groups]
    known = tuple(option for option in chosen if option is not None)
    if len(known) < len(chosen):
        return None
    return LayerSensitivity(measured=measured, chosen=known)


def write_sensitivity(found: LayerSensitivity, directory: Path) -> list[str]:
    """Write the plot into `directory`; return the report's lines about it."""
    groups = found.measured.groups
    chart = line_chart("Divergence by layer", "layer quantized alone", "mean KL", _series(groups))
    (directory / PLOT_NAME).write_text(chart, encoding="utf-8")
    bits = average_bits(groups, found.chosen)
    predicted = sum(option.kl for option in found.chosen)
    lines = [
        "## Layer sensitivity",
        "",
        f"Mean KL when one layer's attention or MLP alone is quantized, over"
        f" {found.measured.num_tokens} tokens of the calibration text. Chosen: {bits:.3f} bits a"
        f" weight on average; the sum of what was chosen is {predicted:.3g}.",
        "",
        f"![mean KL by layer]({PLOT_NAME})",
        "",
        "| part | format | layers |",
        "|---|---|---|",
    ]
    layers: dict[tuple[str, str], list[str]] = {}
    for group, option in zip(groups, found.chosen, strict=True):
        key = (_part(group), option.algo or "unquantized")
        layers.setdefault(key, []).append(str(group.layer))
    for (part, algo), numbers in sorted(layers.items()):
        lines.append(f"| {part} | {algo} | {', '.join(numbers)} |")
    return [*lines, ""]


def _chosen(group: Group, quantization: Quantization) -> Option | None:
    """Return the option that the modules of a group have, None when it is none of those known."""
    algos = {quantization.of_module(module).quant_algo for module in group.modules}
    options = [option for option in group.options if {option.algo} == algos]
    return options[0] if options else None


def _series(groups: tuple[Group, ...]) -> Mapping[str, Points]:
    series: dict[str, list[tuple[float, float]]] = {}
    for group in groups:
        for option in group.options:
            if option.algo is not None:
                name = f"{_part(group)} {option.algo}"
                series.setdefault(name, []).append((group.layer, option.kl))
    return series


def _part(group: Group) -> str:
    return group.name.rpartition(".")[2]
