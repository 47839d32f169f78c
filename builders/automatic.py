"""Quantization `auto`: measure what each format costs each group, then choose within the budget.

The measuring is a stage of its own, that does not depend on the budget: another one only chooses
anew.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from llmc.arch import ModelArch
from llmc.builders.hf.preflight import examine
from llmc.builders.quantize.calibration import Calibration
from llmc.builders.quantize.mixed import (
    Sensitivities,
    average_bits,
    choose_options,
    mixture,
    module_groups,
    stored_bits,
)
from llmc.builders.quantize.sensitivity import measure_sensitivities
from llmc.checkpoint import CheckpointConfig, Quantization
from llmc.errors import UnsupportedError
from llmc.log import Progress
from llmc.quant.format import load_format
from llmc.recipes.schema import QuantizationRecipe

AUTO = "auto"

DEFAULT_LAYOUT = "sm80"
"""Where a format has no portable layout and none is named: what most GPUs read."""


def recipe_reasons(wanted: QuantizationRecipe) -> list[str]:
    """Return what of a recipe's quantization contradicts itself."""
    if wanted.algo != AUTO:
        if wanted.target_bits is None:
            return []
        return [f"quantization.target_bits with algo {wanted.algo or 'none'}, expected {AUTO}"]
    reasons = []
    if wanted.target_bits is None:
        reasons.append(f"quantization.algo {AUTO}: target_bits is missing")
    if wanted.exclude is not None:
        reasons.append(f"quantization.exclude with algo {AUTO}, which chooses module by module")
    if not wanted.candidates:
        reasons.append(f"quantization.algo {AUTO}: candidates is empty")
    return reasons


def everywhere(arch: ModelArch, choice: Quantization) -> Quantization:
    """Return the mixture that quantizes every group by `choice`; its KV cache stays."""
    alike = [_of_module(choice)] * sum(1 for _ in module_groups(arch))
    return replace(mixture(arch, alike), kv_cache_quant_algo=choice.kv_cache_quant_algo)


def budget_reasons(
    config: CheckpointConfig, candidates: Sequence[Quantization], target_bits: float
) -> list[str]:
    """Return why no choice has `target_bits` bits on average, or why there is nothing to choose."""
    groups = [linears for _, linears in module_groups(config.arch)]
    num_weights = sum(linear.num_out * linear.num_in for group in groups for linear in group)

    def average(choices: Sequence[Quantization]) -> float:
        smallest = [
            min(stored_bits(group, choice, config.dtype) for choice in choices) for group in groups
        ]
        return sum(smallest) / num_weights

    least, most = average(candidates), average([Quantization()])
    if target_bits < least:
        return [
            f"quantization.target_bits: {target_bits:g}, expected at least {least:.3f}, what"
            " the smallest candidates take with their scales"
        ]
    if target_bits >= most:
        return [
            f"quantization.target_bits: {target_bits:g}, expected less than the {most:g} of"
            f" unquantized {config.dtype}"
        ]
    return []


def measure(
    model_dir: Path,
    config: CheckpointConfig,
    candidates: Sequence[Quantization],
    calibration: Calibration,
    staging: Path,
    progress: Progress,
) -> None:
    """Write sensitivities.json into `staging`, an empty directory."""
    model, reasons = examine(model_dir)
    if model is None or reasons:
        raise UnsupportedError(f"{model_dir}: cannot be converted", reasons)
    try:
        found = measure_sensitivities(
            model,
            model_dir,
            config,
            [_of_module(candidate) for candidate in candidates],
            calibration,
            progress=progress,
        )
    finally:
        model.weights.close()
    found.write(staging)


def choose(
    directory: Path, arch: ModelArch, candidates: Sequence[Quantization], target_bits: float
) -> tuple[Quantization, str]:
    """Return the best mixture within the budget and a line that says what it is."""
    found = Sensitivities.read(directory)
    options = choose_options(found.groups, target_bits)
    if options is None:
        # Only possible where the budget leaves less than a unit a group (`mixed.solve`).
        raise UnsupportedError(f"quantization.target_bits: {target_bits:g} is too tight by a hair")
    by_algo = {str(one.quant_algo): _of_module(one) for one in candidates}
    chosen = mixture(arch, [by_algo.get(str(option.algo)) for option in options])
    kinds = [option.algo or "unquantized" for option in options]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(sorted(kinds)))
    line = (
        f"{average_bits(found.groups, options):.3f} bits on average: {counts};"
        f" predicted KL {sum(option.kl for option in options):.4g}"
    )
    return replace(chosen, kv_cache_quant_algo=candidates[0].kv_cache_quant_algo), line


def needed_layout(quantization: Quantization, wanted: str | None) -> str | None:
    """Return the layout of a mixture: `wanted` where a format has one, else what it must have."""
    algos = {str(one.quant_algo) for one in quantization.quantized_layers.values()}
    forms = [load_format(algo) for algo in algos]
    packed = [form for form in forms if form.needs_layout]
    if any(form.in_checkpoint == "quantized" for form in packed):
        return wanted or DEFAULT_LAYOUT
    return wanted if packed else None


def _of_module(choice: Quantization) -> Quantization:
    """Return a quantization as that of one module: what is of the whole model is left out."""
    return replace(choice, kv_cache_quant_algo=None, exclude_modules=None, clamp_val=None)
