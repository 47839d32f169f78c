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


def describe_rows(logits: Float32Array, targets: npt.NDArray[np.int32]) -> RowMetrics:
    """Measure `logits` [n, vocab] alone; `targets` [m] are the next tokens of the first m rows."""
    nll = np.empty(len(targets))
    for block in _blocks(len(targets)):
        logs = _log_softmax(logits[block])
        nll[block] = -logs[np.arange(len(logs)), targets[block]]
    return RowMetrics(
        nll=nll,
        top1=logits.argmax(axis=1),
        finite=np.isfinite(logits).all(axis=1),
        flat=logits.min(axis=1) == logits.max(axis=1),
    )


def divergence(reference: Float32Array, candidate: Float32Array) -> Float64Array:
    """Return KL(reference || candidate) [n] in nats of logits [n, vocab]; nan where not finite."""
    assert reference.shape == candidate.shape, (reference.shape, candidate.shape)
    kl = np.empty(len(reference))
    for block in _blocks(len(reference)):
        wanted, found = _log_softmax(reference[block]), _log_softmax(candidate[block])
        with np.errstate(invalid="ignore"):
            np.subtract(wanted, found, out=found)
            kl[block] = np.einsum("nv,nv->n", np.exp(wanted, out=wanted), found)
    # Rounding leaves equal distributions a hair below zero; nan stays nan.
    return np.maximum(kl, 0.0)


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
