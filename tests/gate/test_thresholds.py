"""Limits by quantization, replaced by a recipe's, and what a verdict makes of them."""

from typing import Any

import pytest

from llmc.gate.thresholds import DEFAULTS, KV_CACHE, default_thresholds, judge, resolve_thresholds
from llmc.quant import FORMATS
from llmc.recipes.schema import GateRecipe
from tests.gate.records import measurement, text


@pytest.mark.parametrize("algo", [None, *FORMATS])
@pytest.mark.parametrize("kv_cache", KV_CACHE)
def test_every_quantization_has_limits(algo: str | None, kv_cache: str | None) -> None:
    limits = default_thresholds(algo, kv_cache)
    unquantized = default_thresholds(None, None)
    # A broken layer costs several nats (test_step).
    assert unquantized.max_kl <= limits.max_kl < 1.5
    assert unquantized.max_perplexity_increase <= limits.max_perplexity_increase < 2
    assert 0.4 < limits.min_top1_agreement <= unquantized.min_top1_agreement < 1


def test_only_what_a_recipe_names_is_replaced() -> None:
    recipe = GateRecipe(max_kl=0.5, min_top1_agreement=0)
    found = resolve_thresholds(measurement(quant_algo="W8A16"), recipe)
    assert (found.max_kl, found.min_top1_agreement) == (0.5, 0)
    assert found.max_perplexity_increase == DEFAULTS["W8A16"].max_perplexity_increase


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({}, []),
        ({"mean_kl": 0.031}, ["mean_kl"]),
        ({"perplexity_increase": 0.5}, ["perplexity_increase"]),
        ({"perplexity_increase": -0.5}, []),
        ({"top1_agreement": 0.5}, ["top1_agreement"]),
        ({"mean_kl": 9.0, "top1_agreement": 0.0}, ["mean_kl", "top1_agreement"]),
    ],
)
def test_each_metric_can_fail(changes: dict[str, Any], failing: list[str]) -> None:
    found = measurement(text(**changes), quant_algo="W8A16")
    gate = judge(found, default_thresholds("W8A16", None))
    assert gate.verdict == ("failed" if failing else "passed")
    assert [check.metric for check in gate.failures] == failing


def test_a_domain_that_suffers_fails_though_the_average_would_pass() -> None:
    found = measurement(text("prose", mean_kl=0.001), text("code", mean_kl=0.04))
    gate = judge(found, default_thresholds("W8A16", None))
    assert [str(check) for check in gate.failures] == ["code: mean_kl 0.04, expected at most 0.03"]


def test_without_a_reference_only_numbers_are_demanded() -> None:
    alone = text().model_copy(update={"divergence": None})
    limits = default_thresholds(None, None)
    assert judge(measurement(alone), limits).verdict == "passed"
    for name in ("nonfinite_tokens", "flat_tokens"):
        gate = judge(measurement(alone.model_copy(update={name: 1})), limits)
        assert [check.metric for check in gate.failures] == [name]
