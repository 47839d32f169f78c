"""Numbers of logits against their definitions."""

import math

import numpy as np
import pytest

from llmc.gate.metrics import compare_rows, describe_rows

VOCAB = 50_000


def softmax(logits: list[float]) -> list[float]:
    """Softmax by exact summation."""
    peak = max(logits)
    total = math.fsum(math.exp(value - peak) for value in logits)
    return [math.exp(value - peak) / total for value in logits]


def test_divergence_and_loss_are_their_definitions() -> None:
    generator = np.random.default_rng(0)
    wanted, found = (generator.normal(size=(40, 37)).astype(np.float32) * 3 for _ in range(2))
    targets = generator.integers(0, 37, 39).astype(np.int32)
    result = compare_rows(wanted, found, targets)
    for row in range(40):
        p, q = softmax(wanted[row].tolist()), softmax(found[row].tolist())
        kl = math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        assert result.kl[row] == pytest.approx(kl, rel=1e-12)
        if row < 39:
            assert result.reference.nll[row] == pytest.approx(-math.log(p[targets[row]]), rel=1e-12)
            assert result.candidate.nll[row] == pytest.approx(-math.log(q[targets[row]]), rel=1e-12)
    assert result.candidate.nll.tolist() == describe_rows(found, targets).nll.tolist()
    assert result.reference.top1.tolist() == wanted.argmax(axis=1).tolist()


def test_tiny_differences_in_a_large_vocabulary_are_not_lost() -> None:
    """To second order KL is half the variance of the difference, here 5e-9; float32 gives noise."""
    generator = np.random.default_rng(1)
    wanted = np.round(generator.normal(size=(4, VOCAB)), 3).astype(np.float32)
    found = wanted + (generator.normal(size=wanted.shape) * 1e-4).astype(np.float32)
    kl = compare_rows(wanted, found, np.zeros(3, np.int32)).kl
    for row in range(4):
        p = np.asarray(softmax(wanted[row].tolist()))
        difference = found[row].astype(np.float64) - wanted[row]
        variance = (p * difference**2).sum() - (p * difference).sum() ** 2
        assert kl[row] == pytest.approx(variance / 2, rel=0.01)


def test_equal_rows_diverge_by_nothing() -> None:
    logits = np.random.default_rng(2).normal(size=(5, VOCAB)).astype(np.float32) * 10
    assert compare_rows(logits, logits, np.zeros(5, np.int32)).kl.tolist() == [0.0] * 5


def test_huge_logits_stay_finite() -> None:
    wanted = np.zeros((1, 8), np.float32)
    found = wanted.copy()
    wanted[0, 0], found[0, 1] = 1e4, 1e4
    result = compare_rows(wanted, found, np.asarray([0], np.int32))
    assert result.kl[0] == 1e4
    assert result.candidate.nll[0] == 1e4


def test_rows_that_say_nothing_are_told_apart() -> None:
    logits = np.random.default_rng(3).normal(size=(5, 16)).astype(np.float32)
    logits[1, 3], logits[2, 0], logits[3] = np.nan, np.inf, 7.0
    result = compare_rows(np.ones((5, 16), np.float32), logits, np.zeros(4, np.int32))
    assert result.candidate.finite.tolist() == [True, False, False, True, True]
    assert result.candidate.flat.tolist() == [False, False, False, True, False]
    assert np.isnan(result.kl).tolist() == [False, True, True, False, False]
    assert np.isnan(result.candidate.nll).tolist() == [False, True, True, False]
