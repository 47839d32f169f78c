"""How good an engine must be: limits by quantization, and the judgement of a measurement.

The limits catch what went wrong (a scale, a packing, an axis), and what nobody would want to serve.
They are not a ranking: docs/quantization.md has measured values. A recipe's `gate` part replaces
each limit by one of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from llmc.gate.record import Check, Gate, Measurement, Metric, TextMeasurement
from llmc.recipes.schema import GateRecipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Each text must keep to all three; KL in nats a token, the others shares of 1."""

    max_kl: float
    max_perplexity_increase: float
    min_top1_agreement: float


_ROUNDED = Thresholds(max_kl=0.01, max_perplexity_increase=0.02, min_top1_agreement=0.95)
_EIGHT_BITS = Thresholds(max_kl=0.03, max_perplexity_increase=0.04, min_top1_agreement=0.90)
_EIGHT_BIT_FLOATS = Thresholds(max_kl=0.07, max_perplexity_increase=0.08, min_top1_agreement=0.85)
_FIXED_INPUTS = Thresholds(max_kl=0.20, max_perplexity_increase=0.20, min_top1_agreement=0.75)
_FOUR_BITS = Thresholds(max_kl=0.30, max_perplexity_increase=0.35, min_top1_agreement=0.65)

DEFAULTS: dict[str | None, Thresholds] = {
    None: _ROUNDED,
    "W8A16": _EIGHT_BITS,
    "W4A16": _FOUR_BITS,
    "W4A16_AWQ": _FOUR_BITS,
    "W4A16_GPTQ": _FOUR_BITS,
    "W4A8_AWQ": _FOUR_BITS,
    "W8A8_SQ_PER_CHANNEL": _FIXED_INPUTS,
    "W8A8_SQ_PER_TENSOR_PLUGIN": _FIXED_INPUTS,
    "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN": _FIXED_INPUTS,
    "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN": _FIXED_INPUTS,
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": _EIGHT_BITS,
    "FP8": _EIGHT_BIT_FLOATS,
    "FP8_PER_CHANNEL_PER_TOKEN": _EIGHT_BIT_FLOATS,
    "NVFP4": _FOUR_BITS,
    "MIXED_PRECISION": _FOUR_BITS,
}
"""Quantization of the weights → its limits; None is an engine that is only rounded to a dtype.

By what a number costs, not by what some model happens to lose: docs/quality-gate.md derives them.
A model of 135 million parameters passes with the formats worth having, and not with plain W4A16,
W8A8_SQ_PER_TENSOR_PLUGIN and NVFP4, which take half or more onto its perplexity."""

KV_CACHE: dict[str | None, Thresholds] = {
    None: Thresholds(max_kl=0.0, max_perplexity_increase=0.0, min_top1_agreement=1.0),
    "INT8": Thresholds(max_kl=0.03, max_perplexity_increase=0.05, min_top1_agreement=0.94),
    "FP8": Thresholds(max_kl=0.04, max_perplexity_increase=0.03, min_top1_agreement=0.95),
}
"""What quantizing the KV cache may cost on top; the agreements multiply."""


def default_thresholds(quant_algo: str | None, kv_cache_quant_algo: str | None) -> Thresholds:
    """Return the limits of a quantization of weights and KV cache."""
    weights, kv_cache = DEFAULTS[quant_algo], KV_CACHE[kv_cache_quant_algo]
    return Thresholds(
        max_kl=weights.max_kl + kv_cache.max_kl,
        max_perplexity_increase=weights.max_perplexity_increase + kv_cache.max_perplexity_increase,
        min_top1_agreement=weights.min_top1_agreement * kv_cache.min_top1_agreement,
    )


def resolve_thresholds(measurement: Measurement, recipe: GateRecipe) -> Thresholds:
    """Return the recipe's limits, where it has none those of the engine's quantization."""
    default = default_thresholds(measurement.quant_algo, measurement.kv_cache_quant_algo)
    return Thresholds(
        max_kl=_first(recipe.max_kl, default.max_kl),
        max_perplexity_increase=_first(
            recipe.max_perplexity_increase, default.max_perplexity_increase
        ),
        min_top1_agreement=_first(recipe.min_top1_agreement, default.min_top1_agreement),
    )


def judge(measurement: Measurement, thresholds: Thresholds) -> Gate:
    """Hold every text to the limits: an average would hide the domain that suffers."""
    checks = tuple(check for text in measurement.texts for check in _checks(text, thresholds))
    passed = all(check.passed for check in checks)
    return Gate(verdict="passed" if passed else "failed", checks=checks, measurement=measurement)


def _checks(text: TextMeasurement, thresholds: Thresholds) -> Iterator[Check]:
    def check(metric: Metric, value: float, threshold: float) -> Check:
        passed = value >= threshold if metric == "top1_agreement" else value <= threshold
        return Check(
            text=text.name,
            sha256=text.sha256,
            metric=metric,
            value=value,
            threshold=threshold,
            passed=passed,
        )

    yield check("nonfinite_tokens", text.nonfinite_tokens, 0)
    yield check("flat_tokens", text.flat_tokens, 0)
    found = text.divergence
    if found is not None:
        yield check("mean_kl", found.mean_kl, thresholds.max_kl)
        yield check(
            "perplexity_increase", found.perplexity_increase, thresholds.max_perplexity_increase
        )
        yield check("top1_agreement", found.top1_agreement, thresholds.min_top1_agreement)


def _first(given: float | None, default: float) -> float:
    return default if given is None else given
