"""How far one prediction of the next token is from another: numbers of logits, nothing of engines.

Everything is computed in float64 from float32 logits, a few rows at a time: the sum over a large
vocabulary of tiny differences is exactly what float32 loses.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]

_BLOCK_ROWS = 16
"""Rows turned to float64 at once: a few MiB even of a large vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMetrics:
    """What n rows of logits say, of which the first m have a known next token (m <= n)."""

    nll: Float64Array
    """[m] negative log likelihood of the next token, in nats; nan where the row is not finite"""
    top1: npt.NDArray[np.int64]
    """[n] the likeliest token, the lowest of equals"""
    finite: npt.NDArray[np.bool_]
    """[n] whether every logit is a number"""
    flat: npt.NDArray[np.bool_]
    """[n] whether all logits are equal: a model that says nothing"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowComparison:
    """n rows of a candidate beside those of a reference."""

    reference: RowMetrics
    candidate: RowMetrics
    kl: Float64Array
    """[n] KL(reference || candidate) in nats; nan where either is not finite"""


def describe_rows(logits: Float32Array, targets: npt.NDArray[np.int32]) -> RowMetrics:
    """Measure `logits` [n, vocab] alone; `targets` [m] are the next tokens of the first m rows."""
    nll = np.empty(len(targets))
    for block in _blocks(len(targets)):
        nll[block] = _losses(_log_softmax(logits[block]), targets[block])
    return _row_metrics(logits, nll)


def compare_rows(
    reference: Float32Array, candidate: Float32Array, targets: npt.NDArray[np.int32]
) -> RowComparison:
    """Measure two models' logits [n, vocab] of the same n tokens; `targets` as in describe_rows."""
    assert reference.shape == candidate.shape, (reference.shape, candidate.shape)
    kl = np.empty(len(reference))
    wanted_nll, found_nll = np.empty(len(targets)), np.empty(len(targets))
    for block in _blocks(len(reference)):
        wanted, found = _log_softmax(reference[block]), _log_softmax(candidate[block])
        wanted_nll[block] = _losses(wanted, targets[block])
        found_nll[block] = _losses(found, targets[block])
        with np.errstate(invalid="ignore"):
            np.subtract(wanted, found, out=found)
            kl[block] = np.einsum("nv,nv->n", np.exp(wanted, out=wanted), found)
    return RowComparison(
        reference=_row_metrics(reference, wanted_nll),
        candidate=_row_metrics(candidate, found_nll),
        # Rounding leaves equal distributions a hair below zero; nan stays nan.
        kl=np.maximum(kl, 0.0),
    )


def _row_metrics(logits: Float32Array, nll: Float64Array) -> RowMetrics:
    return RowMetrics(
        nll=nll,
        top1=logits.argmax(axis=1),
        finite=np.isfinite(logits).all(axis=1),
        flat=logits.min(axis=1) == logits.max(axis=1),
    )


def _losses(logs: Float64Array, targets: npt.NDArray[np.int32]) -> Float64Array:
    """Return the negative log probability of each target; targets may be fewer than rows."""
    losses: Float64Array = -logs[np.arange(len(targets)), targets]
    return losses


def _blocks(num_rows: int) -> Iterator[slice]:
    for start in range(0, num_rows, _BLOCK_ROWS):
        yield slice(start, min(start + _BLOCK_ROWS, num_rows))


def _log_softmax(logits: Float32Array) -> Float64Array:
    """Return log probabilities of rows [n, vocab]; a row with an infinity or nan is all nan."""
    with np.errstate(invalid="ignore"):
        values = logits.astype(np.float64)
        values -= values.max(axis=1, keepdims=True)
        values -= np.log(np.exp(values).sum(axis=1, keepdims=True))
    return values
