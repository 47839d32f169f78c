"""Layer sensitivity in the report: what each format costs each layer alone, and what was chosen."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llmc import artifacts
from llmc.builders.quantize.mixed import (
    Group,
    Option,
    Sensitivities,
    average_bits,
)
from llmc.checkpoint import MIXED_PRECISION, Quantization
from llmc.errors import CheckpointError
from llmc.gate.plot import Points, line_chart

log = logging.getLogger(__name__)

PLOT_NAME = "kl-by-layer.svg"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSensitivity:
    """What was measured of each group of linears, and the option its engine has, in that order."""

    measured: Sensitivities
    chosen: tuple[Option, ...]


def read_sensitivity(
    engine_dir: Path, build_dir: Path, quantization: Quantization
) -> LayerSensitivity | None:
    """Return what an engine with `quantization` was chosen by.

    None for an engine that is not mixed, and where the build does not show that
    `build_dir`/sensitivity is what it was chosen by.
    """
    directory = build_dir / "sensitivity"
    if quantization.quant_algo != MIXED_PRECISION or not directory.is_dir():
        return None
    if not _is_chosen_by(engine_dir, build_dir / "checkpoint", directory):
        log.warning("%s is not what %s was chosen by: not reported", directory, engine_dir)
        return None
    measured = Sensitivities.read(directory)
    chosen = [_chosen(group, quantization) for group in measured.groups]
    known = tuple(option for option in chosen if option is not None)
    if len(known) < len(chosen):
        return None
    return LayerSensitivity(measured=measured, chosen=known)


def _is_chosen_by(*directories: Path) -> bool:
    """Follow the digests from engine to checkpoint to sensitivity, and to the latter's bytes."""
    try:
        engine, checkpoint, sensitivity = map(artifacts.read_manifest, directories)
    except CheckpointError:
        return False
    return (
        engine.inputs.get("checkpoint") == checkpoint.content_digest
        and checkpoint.inputs.get("sensitivity") == sensitivity.content_digest
        and not artifacts.verify(directories[2], sensitivity)
    )


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
