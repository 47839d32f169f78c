"""AWQ: scale up the weights of salient input channels before INT4 rounding, then clip each group.

Both searches measure the error of the module's output on the kept input rows. Modules with the same
input share its scale.

Source: AWQ, arXiv 2306.00978, section 3.2 (scale = mean|x|^ratio over a grid of ratios) and its
published implementation (normalized by the geometric middle of the scale; clipping not applied to q
and k, whose error the softmax makes hard to judge).

Legend: out, in are a module's features; G groups of g input channels.
"""

from dataclasses import replace

import numpy as np

from llmc.builders.quantize.rounding import (
    choice_for,
    error_basis,
    output_error,
    round_to,
    tensors_of,
)
from llmc.builders.quantize.site import Algorithm, Floats, Module, Settings, Site, Tensors
from llmc.quant.format import Choice, decode, group_amax, load_format

RATIOS = tuple(step / 10 for step in range(10))
"""How far the scale follows the activations: 0 is plain rounding."""

FINER = (-0.05, 0.05)
"""What is tried beside the best of RATIOS."""

CLIPS = tuple(1 - step / 20 for step in range(1, 9))
"""Shares of a group's largest magnitude that are tried beside the whole."""

_SMALLEST = np.float32(1e-4)
_ROWS_AT_ONCE = 512


def quantize(site: Site, settings: Settings) -> Tensors:
    """Choose the site's scale, clip its groups and round."""
    scale = search_scale(site, settings)
    prequant = round_to(1 / scale, settings.dtype)
    # What the rounded factor leaves goes into the weights.
    scale = 1 / prequant
    rows = site.stats.rows * prequant
    input_amax = float((site.stats.amax * prequant).max())
    scaled = [module.weight * scale for module in site.modules]
    weight_amax = float(max(np.abs(weight).max() for weight in scaled))
    form = load_format(settings.algo)
    tensors: Tensors = {}
    for module, weight in zip(site.modules, scaled, strict=True):
        choice = replace(
            choice_for(module, settings),
            prequant=prequant,
            input_amax=input_amax,
            global_amax=weight_amax,
        )
        choice = replace(choice, weight_amax=search_clip(module, weight, rows, choice, settings))
        tensors |= tensors_of(module.name, settings, choice, form.encode(weight, choice))
    return tensors


def search_scale(site: Site, settings: Settings) -> Floats:
    """Return the scale [in] of weights with the least output error over RATIOS and FINER."""
    basis = error_basis(site.stats.rows)
    form = load_format(settings.algo)
    importance = np.maximum(site.stats.mean_abs, _SMALLEST)

    def scale_at(ratio: float) -> Floats:
        scale = importance ** np.float32(ratio)
        scale /= np.sqrt(scale.max() * scale.min())
        return scale

    def error_at(ratio: float) -> float:
        scale, error = scale_at(ratio), 0.0
        for module in site.modules:
            choice = choice_for(module, settings)
            rounded = decode(form.encode(module.weight * scale, choice))
            rounded /= scale
            rounded -= module.weight
            error += output_error(rounded, basis)
        return error

    errors = {ratio: error_at(ratio) for ratio in RATIOS}
    best = min(errors, key=errors.__getitem__)
    errors |= {best + step: error_at(best + step) for step in FINER if best + step > 0}
    return scale_at(min(errors, key=errors.__getitem__))


def search_clip(
    module: Module, weight: Floats, rows: Floats, choice: Choice, settings: Settings
) -> Floats:
    """Return the magnitudes [out, G] to clip the groups of `weight` [out, in] to.

    `rows` [S, in] and `weight` are scaled. Each group of each output row is judged by itself.
    """
    num_out, num_in = weight.shape
    groups = num_in // settings.group_size
    grouped = rows.reshape(len(rows), groups, settings.group_size)
    per_group = np.ascontiguousarray(grouped.transpose(1, 0, 2))
    gram: Floats = np.matmul(per_group.transpose(0, 2, 1), per_group)
    amax = group_amax(weight, groups)
    form = load_format(settings.algo)
    best: Floats = amax.copy()
    first = 0 if len(module.parts) == 1 else sum(module.parts[:-1])
    for start in range(first, num_out, _ROWS_AT_ONCE):
        part = slice(start, min(start + _ROWS_AT_ONCE, num_out))
        least = np.full(best[part].shape, np.inf)
        for clip in (1.0, *CLIPS):
            tried = amax[part] * np.float32(clip)
            rounded = decode(form.encode(weight[part], replace(choice, weight_amax=tried)))
            rounded -= weight[part]
            error = group_errors(rounded, gram)
            better = error < least
            best[part] = np.where(better, tried, best[part])
            least = np.where(better, error, least)
    return best


def group_errors(difference: Floats, gram: Floats) -> Floats:
    """Return d^T gram_g d [out, G] of each group d of `difference` [out, in]; gram is [G, g, g]."""
    groups, size, _ = gram.shape
    # Without the copy numpy multiplies strided matrices in a loop of its own, not BLAS.
    grouped = np.ascontiguousarray(difference.reshape(-1, groups, size).transpose(1, 0, 2))
    product = grouped @ gram
    product *= grouped
    errors: Floats = product.sum(axis=2).T
    return errors


ALGORITHM = Algorithm(quantize=quantize)
