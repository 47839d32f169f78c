"""FP8 (e4m3): one scale per tensor with a calibrated input scale, or one per output row.

FP8: weights and inputs are divided by amax / 448; modules with the same input share both scales, so
that they can be one product. FP8_PER_CHANNEL_PER_TOKEN looks at weights only, after the split to
ranks, as NVIDIA's converter does.

Source: NVIDIA/ModelOpt 0.37 modelopt/torch/export (FP8; q, k, v and gate, up take the largest of
their scales); NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/llama/convert.py
fp8_per_channel_quant_weight_gpu (row-wise).
"""

from dataclasses import replace

import numpy as np

from llmc.builders.quantize.rounding import choice_for, tensors_of
from llmc.builders.quantize.rtn import quantize_weight
from llmc.builders.quantize.site import Algorithm, Settings, Site, Tensors
from llmc.quant.format import load_format


def quantize(site: Site, settings: Settings) -> Tensors:
    """Round the modules of the site with one weight scale and one input scale."""
    form = load_format(settings.algo)
    weight_amax, input_amax = site.column_amax.max(), float(site.stats.amax.max())
    tensors: Tensors = {}
    for module in site.modules:
        choice = replace(
            choice_for(module, settings),
            weight_amax=np.full((1, 1), weight_amax, np.float32),
            input_amax=input_amax,
        )
        elements = form.encode(module.weight, choice)
        tensors |= tensors_of(module.name, settings, choice, elements)
    return tensors


ALGORITHM = Algorithm(quantize=quantize, quantize_weight=quantize_weight)
