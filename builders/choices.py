"""From a recipe's words to what convert is told: mapping, quantization and layout."""

import logging
from dataclasses import replace
from typing import Any

from llmc.arch import ModelArch
from llmc.builders import automatic
from llmc.builders.hf.prequantized.compressed_tensors import NO_CLAMP
from llmc.checkpoint import CheckpointConfig, Quantization, forbidden, unsplittable
from llmc.errors import UnsupportedError
from llmc.mapping import Mapping
from llmc.quant import FORMATS
from llmc.quant.format import load_format
from llmc.recipes.schema import QuantizationRecipe, Recipe

log = logging.getLogger(__name__)


def alternatives_of(
    recipe: Recipe, arch: ModelArch, dtype: str, own: Quantization | None = None
) -> list[tuple[dict[str, Any], Quantization | None]]:
    """Return what the recipe may become: one choice, or with `auto` each candidate everywhere.

    `own` is the quantization the model already has; `preflight` refuses any other.
    """
    wanted = recipe.quantization
    if own is not None:
        # Even its own algorithm: a recipe that names one has an unquantized model to be gated with.
        for key in ("algo", "exclude", "group_size"):
            if getattr(wanted, key) is not None:
                raise UnsupportedError(
                    f"quantization.{key}: the model is quantized already (it becomes"
                    f" {own.quant_algo}); leave it out"
                )
        one = wanted.model_copy(update={"algo": own.quant_algo, "group_size": own.group_size})
        choices = _choices(recipe, one, arch, dtype)
        kept = replace(own, kv_cache_quant_algo=wanted.kv_cache or own.kv_cache_quant_algo)
        return [({**choices, "quantization": kept}, None)]
    reasons = automatic.recipe_reasons(wanted)
    if reasons:
        raise UnsupportedError("quantization", reasons)
    if wanted.algo != automatic.AUTO:
        return [(_choices(recipe, wanted, arch, dtype), None)]
    found: list[tuple[dict[str, Any], Quantization | None]] = []
    for algo in dict.fromkeys(wanted.candidates):
        one = wanted.model_copy(update={"algo": algo})
        choices = _choices(recipe, one, arch, dtype)
        quantization = choices["quantization"]
        if algo in FORMATS:
            mixture = automatic.everywhere(arch, quantization)
            layout = automatic.needed_layout(mixture, wanted.layout)
            choices |= {"quantization": mixture, "layout": layout}
        found.append((choices, quantization))
    return found


def _choices(
    recipe: Recipe, wanted: QuantizationRecipe, arch: ModelArch, dtype: str
) -> dict[str, Any]:
    """Return the recipe's checkpoint part in the words of convert; `dtype` is what None means."""
    mapping = Mapping(
        tp_size=recipe.mapping.tp,
        pp_size=recipe.mapping.pp,
        moe_tp_size=recipe.mapping.moe_tp,
        moe_ep_size=recipe.mapping.moe_ep,
    )
    quantization, layout = choose_quantization(wanted, arch, mapping, dtype)
    return {
        "dtype": recipe.dtype,
        "mapping": mapping,
        "quantization": quantization,
        "use_parallel_embedding": recipe.mapping.use_parallel_embedding,
        "embedding_sharding_dim": recipe.mapping.embedding_sharding_dim,
        "layout": layout,
    }


def choose_quantization(
    wanted: QuantizationRecipe, arch: ModelArch, mapping: Mapping, dtype: str
) -> tuple[Quantization, str | None]:
    """Fill in what the recipe leaves open: group size, and the layout of what has no portable one.

    The largest group size that fits the model and its split is taken. An unknown algorithm is kept:
    `forbidden` has the words for it.
    """
    if wanted.algo is not None and wanted.algo not in FORMATS:
        unknown = Quantization(quant_algo=wanted.algo, kv_cache_quant_algo=wanted.kv_cache)
        return unknown, wanted.layout
    form = load_format(wanted.algo) if wanted.algo is not None else None
    layout: str | None = wanted.layout
    if form is not None and layout is None:
        if form.needs_layout and form.in_checkpoint == "quantized":
            layout = automatic.DEFAULT_LAYOUT
            log.info("layout: %s, as %s has no portable one", layout, form.algo)
    sizes: list[int | None] = [wanted.group_size]
    if form is not None and wanted.group_size is None and form.group_sizes:
        sizes = [*sorted(form.group_sizes, reverse=True)]
    fitting = quantizations = [_quantization(wanted, size) for size in sizes]
    if len(sizes) > 1:
        fitting = [
            choice
            for choice in quantizations
            if not _misfits(
                CheckpointConfig(
                    arch=arch, dtype=dtype, mapping=mapping, quantization=choice, layout=layout
                )
            )
        ]
        if fitting:
            log.info("group_size: %d, the largest that fits", fitting[0].group_size)
    return (fitting or quantizations)[0], layout


def _quantization(wanted: QuantizationRecipe, group_size: int | None) -> Quantization:
    """Return what TensorRT-LLM's tools write, with what the recipe or this model decides otherwise.

    Its bounds of inputs, ±1200, are of one model's training recipe. Elsewhere they cut off what
    scales per token have room for (docs/quantization.md), so that none are set unless asked for.
    """
    made = Quantization.of(
        wanted.algo, wanted.kv_cache, group_size=group_size, exclude_modules=wanted.exclude
    )
    if wanted.alpha is not None:
        made = replace(made, smoothquant_val=wanted.alpha)
    if made.clamp_val is not None:
        bound = NO_CLAMP[1] if wanted.clamp is None else wanted.clamp
        made = replace(made, clamp_val=(-bound, bound))
    return made


def _misfits(config: CheckpointConfig) -> list[str]:
    return unsplittable(config) or forbidden(config)
