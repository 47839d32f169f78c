"""Run an engine and its reference over texts, side by side, and sum up how far apart they are.

A text is cut into windows, each read from an empty KV cache in steps of a few tokens, every one of
which wants logits. Both engines take the same step before the next begins, so that memory holds the
logits of one step only.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from llmc.errors import UnsupportedError
from llmc.gate.corpus import GateText, encode
from llmc.gate.metrics import Float32Array, Float64Array, RowMetrics, compare_rows, describe_rows
from llmc.gate.record import Divergence, TextMeasurement, WorstToken
from llmc.log import Progress
from llmc.runtime.batch import Batch
from llmc.runtime.engine import Engine, EngineLimits
from llmc.runtime.tokenizer import Tokenizer

WINDOW_TOKENS = 1024
"""Longest window; engines with a shorter max_seq_len have shorter ones."""

STEP_TOKENS = 128
"""Most tokens of a step: [128, vocab] float32 logits of two engines are held at once."""

POSITION_STEP = 16
NUM_WORST = 5
_CONTEXT_TOKENS = 16
_MAX_NLL = 700.0
"""exp of more is no float64."""


@dataclass(slots=True, kw_only=True)
class _Rows:
    """What the steps of one text gave: a row for each token."""

    positions: list[int] = field(default_factory=list)
    candidate: list[RowMetrics] = field(default_factory=list)
    reference: list[RowMetrics] = field(default_factory=list)
    kl: list[Float64Array] = field(default_factory=list)


def measure(
    reference: Engine | None,
    candidate: Engine,
    tokenizer: Tokenizer,
    texts: Sequence[GateText],
    *,
    max_tokens: int,
    progress: Progress,
) -> tuple[TextMeasurement, ...]:
    """Measure `candidate` on the first `max_tokens` tokens of each text.

    Both engines' KV pools must hold `window_tokens` of them. Without a reference the candidate is
    only looked at by itself.
    Raises: UnsupportedError when the engines have different vocabularies or the reference's logits
    are not finite, CheckpointError for a text without two tokens.
    """
    vocab_size = candidate.limits.vocab_size
    if reference is not None and reference.limits.vocab_size != vocab_size:
        raise UnsupportedError(
            f"vocabulary of the reference: {reference.limits.vocab_size} tokens,"
            f" expected the engine's {vocab_size}",
            hint="compare engines of the same model",
        )
    encoded = [
        encode(text, tokenizer, vocab_size=vocab_size, max_tokens=max_tokens) for text in texts
    ]
    progress.start("gate", sum(map(len, encoded)), unit="tokens")
    found = []
    for text, ids in zip(texts, encoded, strict=True):
        rows = _run(reference, candidate, ids, progress)
        if not all(part.finite.all() for part in rows.reference):
            raise UnsupportedError(f"{text.name}: the reference's logits are not finite")
        found.append(_sum_up(text, ids, rows, tokenizer))
    progress.finish()
    return tuple(found)


def window_tokens(*limits: EngineLimits) -> int:
    """Return how long a window of engines with these limits is."""
    return min(WINDOW_TOKENS, *(limit.max_seq_len for limit in limits))


def _run(
    reference: Engine | None, candidate: Engine, ids: Sequence[int], progress: Progress
) -> _Rows:
    engines = [candidate] if reference is None else [candidate, reference]
    limits = [engine.limits for engine in engines]
    step = min(STEP_TOKENS, *(limit.max_num_tokens for limit in limits))
    rows = _Rows()
    for window in _windows(ids, window_tokens(*limits)):
        for start in range(0, len(window), step):
            stop = min(start + step, len(window))
            targets = window[start + 1 : stop + 1]
            logits = [engine.forward(_batch(window, start, stop, engine)) for engine in engines]
            _append(rows, logits, targets)
            rows.positions += range(start, stop)
            progress.advance(stop - start)
    return rows


def _windows(ids: Sequence[int], size: int) -> Iterator[npt.NDArray[np.int32]]:
    """Cut `ids` into as few windows as possible, of about equal length."""
    count = -(-len(ids) // size)
    yield from np.array_split(np.asarray(ids, np.int32), count)


def _batch(window: npt.NDArray[np.int32], start: int, stop: int, engine: Engine) -> Batch:
    """Return the step that reads tokens [start, stop) of the only sequence; all want logits."""
    num_blocks = -(-len(window) // engine.limits.tokens_per_block)
    return Batch(
        token_ids=np.ascontiguousarray(window[start:stop]),
        positions=np.arange(start, stop, dtype=np.int32),
        query_start=np.asarray([0, stop - start], np.int32),
        context_lens=np.asarray([stop], np.int32),
        block_tables=np.arange(num_blocks, dtype=np.int32)[None],
        logits_rows=np.arange(stop - start, dtype=np.int32),
        prompt_lens=np.asarray([len(window)], np.int32),
    )


def _append(rows: _Rows, logits: list[Float32Array], targets: npt.NDArray[np.int32]) -> None:
    if len(logits) == 1:
        rows.candidate.append(describe_rows(logits[0], targets))
        return
    both = compare_rows(logits[1], logits[0], targets)
    rows.candidate.append(both.candidate)
    rows.reference.append(both.reference)
    rows.kl.append(both.kl)


def _sum_up(
    text: GateText, ids: Sequence[int], rows: _Rows, tokenizer: Tokenizer
) -> TextMeasurement:
    finite = np.concatenate([part.finite for part in rows.candidate])
    flat = np.concatenate([part.flat for part in rows.candidate])
    perplexity = _perplexity(rows.candidate)
    comparable = bool(rows.reference) and perplexity is not None
    return TextMeasurement(
        name=text.name,
        sha256=text.sha256,
        num_tokens=len(ids),
        nonfinite_tokens=int((~finite).sum()),
        flat_tokens=int((flat & finite).sum()),
        perplexity=perplexity,
        divergence=_diverge(ids, rows, finite, perplexity, tokenizer) if comparable else None,
    )


def _diverge(
    ids: Sequence[int],
    rows: _Rows,
    finite: npt.NDArray[np.bool_],
    perplexity: float | None,
    tokenizer: Tokenizer,
) -> Divergence:
    kl = np.concatenate(rows.kl)
    wanted = np.concatenate([part.top1 for part in rows.reference])
    found = np.concatenate([part.top1 for part in rows.candidate])
    known = kl[finite]
    reference_perplexity = _perplexity(rows.reference)
    assert reference_perplexity is not None and perplexity is not None
    by_size = np.argsort(-np.where(finite, kl, -1.0), kind="stable")
    return Divergence(
        reference_perplexity=reference_perplexity,
        perplexity_increase=perplexity / reference_perplexity - 1,
        mean_kl=float(known.mean()),
        p99_kl=float(np.quantile(known, 0.99)),
        max_kl=float(known.max()),
        top1_agreement=float((wanted == found)[finite].mean()),
        kl_by_position=_by_position(kl, np.asarray(rows.positions), finite),
        worst=tuple(
            WorstToken(
                index=index,
                kl=float(kl[index]),
                context=tokenizer.decode(list(ids[max(0, index - _CONTEXT_TOKENS) : index + 1])),
                reference=tokenizer.decode([int(wanted[index])]),
                candidate=tokenizer.decode([int(found[index])]),
            )
            for index in map(int, by_size[:NUM_WORST])
            if finite[index]
        ),
    )


def _perplexity(parts: Sequence[RowMetrics]) -> float | None:
    """Return exp of the mean loss over tokens that have one, None without any."""
    losses = np.concatenate([part.nll for part in parts])
    losses = losses[np.isfinite(losses)]
    return math.exp(min(float(losses.mean()), _MAX_NLL)) if losses.size else None


def _by_position(
    kl: Float64Array, positions: npt.NDArray[np.int64], finite: npt.NDArray[np.bool_]
) -> tuple[float | None, ...]:
    bins = positions // POSITION_STEP
    means: list[float | None] = []
    for place in range(int(bins.max()) + 1):
        own = kl[(bins == place) & finite]
        means.append(float(own.mean()) if own.size else None)
    return tuple(means)
