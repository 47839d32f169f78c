"""SmoothQuant: move the activations' outliers into the weights, then round both to INT8.

Before a norm the scales are folded into its weight; attention.dense and mlp.proj keep them as
`smoother`; in W8A8_SQ_PER_CHANNEL every module keeps their inverse as `prequant_scaling_factor`.

Source: arXiv 2211.10438; formulas of NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/convert_utils.py
(smooth_gemm, generate_int8) and models/llama/convert.py. One deviation, for accuracy: the weights
are multiplied by the scale that remains after the folded norm weight is rounded to the model's
dtype, which for bfloat16 takes 0.4 % off every channel otherwise.
"""

from dataclasses import replace

import numpy as np

from llmc.builders.quantize.rounding import choice_for, round_to, smoothing, tensors_of
from llmc.builders.quantize.site import Algorithm, Floats, Settings, Site, Tensors
from llmc.dtypes import numpy_dtype
from llmc.quant.format import decode, load_format, never_zero

ALPHAS = tuple(step / 10 for step in range(3, 11))
"""What is tried for each input."""

_SEARCH_ROWS = 128
_MODELOPT = "W8A8_SQ_PER_CHANNEL"


def quantize(site: Site, settings: Settings) -> Tensors:
    """Smooth the site, then round its modules to INT8."""
    tensors: Tensors = {}
    smoother = prequant = None
    if _can_divide(site, settings.algo):
        alpha = search_alpha(site, settings) if settings.alpha is None else settings.alpha
        scale = smoothing(site.stats.amax, site.column_amax, alpha)
    else:
        scale = np.ones_like(site.stats.amax)
    if settings.algo == _MODELOPT:
        prequant = round_to(1 / scale, settings.dtype)
        scale = 1 / prequant
    elif site.norm is not None and site.norm_weight is not None:
        folded, scale = fold(site.norm_weight, scale, settings.dtype)
        tensors[f"{site.norm}.weight"] = folded.astype(numpy_dtype(settings.dtype))
        if site.norm_bias is not None:
            tensors[f"{site.norm}.bias"] = (site.norm_bias / scale).astype(
                numpy_dtype(settings.dtype)
            )
    else:
        smoother = scale
    input_amax = float((site.stats.amax / scale).max())
    form = load_format(settings.algo)
    for module in site.modules:
        choice = replace(
            choice_for(module, settings),
            input_amax=input_amax,
            smoother=smoother,
            prequant=prequant,
        )
        elements = form.encode(module.weight * scale, choice)
        tensors |= tensors_of(module.name, settings, choice, elements)
    return tensors


def _can_divide(site: Site, algo: str) -> bool:
    """Say whether the site's inputs can be divided by anything: in a norm, or by a tensor for it.

    The input of qkv and fc has no such tensor; where two ops read it, or a norm with a bias or
    another one than RMSNorm writes it, there is nowhere to put a scale.
    """
    roles = {tensor.role for tensor in load_format(algo).tensors_of(site.modules[0].name)}
    return site.norm is not None or bool(roles & {"smoother", "prequant_scaling_factor"})


def search_alpha(site: Site, settings: Settings) -> float:
    """Return which of ALPHAS changes the outputs of the site's kept rows least.

    Inputs and weights are rounded as the format does; folding into a norm is left out.
    """
    rows = site.stats.rows[:: max(1, len(site.stats.rows) // _SEARCH_ROWS)]
    wanted = [rows @ module.weight.T for module in site.modules]
    errors = {}
    for alpha in ALPHAS:
        scale = smoothing(site.stats.amax, site.column_amax, alpha)
        inputs = _rounded_inputs(rows / scale, site.stats.amax / scale, settings.algo)
        errors[alpha] = 0.0
        for module, outputs in zip(site.modules, wanted, strict=True):
            choice = choice_for(module, settings)
            weight = decode(load_format(settings.algo).encode(module.weight * scale, choice))
            errors[alpha] += float(np.square(inputs @ weight.T - outputs, dtype=np.float64).sum())
    return min(errors, key=errors.__getitem__)


def _rounded_inputs(rows: Floats, amax: Floats, algo: str) -> Floats:
    """Return `rows` [S, in] as INT8 holds them; a fixed scale has seen `amax` [in]."""
    if load_format(algo).activation == "per-token int8":
        largest: Floats = np.abs(rows).max(axis=1, keepdims=True)
    else:
        largest = np.full((1, 1), amax.max(), np.float32)
    step = never_zero(largest / np.float32(127))
    rounded: Floats = np.clip(np.rint(rows / step), -128, 127) * step
    return rounded


def fold(norm_weight: Floats, scale: Floats, dtype: str) -> tuple[Floats, Floats]:
    """Divide a norm's weight [in] by `scale`; return it as `dtype` keeps it, and the scale left.

    The product of the two is the norm's weight again, to float32 precision. A channel whose weight
    is zero keeps it, and its scale.
    """
    folded = round_to(norm_weight / scale, dtype)
    usable = (folded != 0) & np.isfinite(folded)
    folded = np.where(usable, folded, round_to(norm_weight, dtype))
    divisor = np.where(folded == 0, np.float32(1), folded)
    left: Floats = np.where(folded == 0, scale, norm_weight / divisor).astype(np.float32)
    return folded, left


ALGORITHM = Algorithm(quantize=quantize)
