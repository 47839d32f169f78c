"""NVFP4: 4-bit floats (e2m1) in blocks of 16 with an FP8 scale each, and a scale per tensor.

Modules with the same input share the per-tensor scales of weights and input.

Source: NVIDIA/ModelOpt 0.37 modelopt/torch/quantization (NVFP4): per-tensor scale amax / (6 * 448),
block scale amax / 6 in units of it.
"""

from dataclasses import replace

from llmc.builders.quantize.rounding import choice_for, tensors_of
from llmc.builders.quantize.site import Algorithm, Settings, Site, Tensors
from llmc.quant.format import load_format


def quantize(site: Site, settings: Settings) -> Tensors:
    """Round the modules of the site, with one scale over all their blocks and one of the input."""
    form = load_format(settings.algo)
    weight_amax, input_amax = float(site.column_amax.max()), float(site.stats.amax.max())
    tensors: Tensors = {}
    for module in site.modules:
        choice = replace(
            choice_for(module, settings), global_amax=weight_amax, input_amax=input_amax
        )
        elements = form.encode(module.weight, choice)
        tensors |= tensors_of(module.name, settings, choice, elements)
    return tensors


ALGORITHM = Algorithm(quantize=quantize)
