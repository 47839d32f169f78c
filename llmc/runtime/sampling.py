"""Logits to tokens. Every row is sampled by itself, so that a token never depends on the batch.

V is the vocabulary. Order of operations, as in TensorRT-LLM: temperature; repetition, presence and
frequency penalties; end ids (before `min_tokens`) and bad words banned; top-k; top-p on what top-k
left; min-p on what both left.

Source: NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels/penaltyKernels.cu, `batchApplyPenalty`
(penalties are applied after temperature and count prompt and output alike).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmc.runtime.nucleus import draw
from llmc.runtime.request import DEFAULT_SEED, Request

FloatArray = npt.NDArray[np.float32]

_MIN_TEMPERATURE = 1e-6
"""Below, scaled logits would leave float32; they are one token's probability 1 long before."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token and, when asked for, its log-probability."""

    token: int
    log_prob: float | None


class SamplerState:
    """What sampling remembers of one request: its random stream and the tokens it has seen.

    One number is drawn per sampled token, so preemption, chunking and the rest of the batch leave
    the stream where it was.
    """

    __slots__ = (
        "request",
        "plain",
        "greedy",
        "_random",
        "_counts",
        "_seen",
        "_num_seen",
        "_banned",
    )

    def __init__(self, request: Request, vocab_size: int) -> None:
        self.request = request
        params = request.sampling
        self.greedy = params.greedy
        self._banned = np.array([w[0] for w in request.bad_words if len(w) == 1], dtype=np.int64)
        self.plain = (
            self.greedy
            and not params.penalizes
            and not request.bad_words
            and not (params.min_tokens and request.end_ids)
        )
        """the token is the argmax of the model's own logits"""
        self._random: np.random.Generator | None = None
        if not self.greedy:
            seed = DEFAULT_SEED if params.seed is None else params.seed
            self._random = np.random.Generator(np.random.Philox(key=seed))
        self._counts: npt.NDArray[np.int32] | None = None
        if params.penalizes:
            self._counts = np.zeros(vocab_size, dtype=np.int32)
            self._seen = np.empty(len(request.prompt_ids) + request.max_tokens, dtype=np.int64)
            self._num_seen = 0
            for token in request.prompt_ids:
                self._count(token)

    def accept(self, token: int) -> None:
        """Record that `token` is part of the output."""
        if self._counts is not None:
            self._count(token)

    def uniform(self) -> float:
        """Draw the next number of the request's stream, in [0, 1)."""
        assert self._random is not None
        return float(self._random.random())

    def process(self, logits: FloatArray, tokens: list[int]) -> FloatArray:
        """Return a copy of a row with temperature, penalties, bans; `tokens` is all so far."""
        params = self.request.sampling
        scale = 1.0
        if params.temperature > 0.0:
            scale = 1.0 / max(params.temperature, _MIN_TEMPERATURE)
        row = logits * np.float32(scale)
        if self._counts is not None:
            seen = self._seen[: self._num_seen]
            values = row[seen]
            penalty = np.float32(params.repetition_penalty)
            values = np.where(values < 0, values * penalty, values / penalty)
            values -= np.float32(params.presence_penalty)
            values -= np.float32(params.frequency_penalty) * self._counts[seen]
            row[seen] = values
        if len(tokens) - len(self.request.prompt_ids) < params.min_tokens:
            row[list(self.request.end_ids)] = -np.inf
        row[self._banned] = -np.inf
        for word in self.request.bad_words:
            if len(word) > 1 and tuple(tokens[1 - len(word) :]) == word[:-1]:
                row[word[-1]] = -np.inf
        return row

    def _count(self, token: int) -> None:
        assert self._counts is not None
        if self._counts[token] == 0:
            self._seen[self._num_seen] = token
            self._num_seen += 1
        self._counts[token] += 1


def sample(
    logits: FloatArray, states: list[SamplerState], tokens: list[list[int]]
) -> list[Sampled | None]:
    """Choose the next token of each row of `logits` [L, V]; `tokens` are each row's tokens so far.

    `logits` is left as it is. An entry is None when the row has no finite value to choose from (NaN
    from the engine, or everything banned): the request can't go on, the others can.
    """
    # One pass for all rows: also what tells a NaN, because argmax returns the first one's index.
    best = logits.argmax(axis=1)
    peaks = logits[np.arange(len(states)), best]
    finite = np.isfinite(peaks).tolist()
    choices: list[int | None] = best.tolist()
    for index, state in enumerate(states):
        if not finite[index]:
            choices[index] = None
        elif not state.plain:
            choices[index] = _choose(logits[index], state, tokens[index])
    return [
        None if token is None else Sampled(token, _log_prob(logits[i], token, states[i]))
        for i, token in enumerate(choices)
    ]


def _choose(logits: FloatArray, state: SamplerState, tokens: list[int]) -> int | None:
    """Choose from one row that needs more than an argmax; None when everything is banned."""
    row = state.process(logits, tokens)
    # Drawn even if the answer is certain: the stream depends on the number of tokens alone.
    uniform = 0.0 if state.greedy else state.uniform()
    best = int(row.argmax())
    if not np.isfinite(row[best]):
        return None
    if state.greedy:
        return best
    params = state.request.sampling
    return draw(
        row,
        uniform,
        top_k=params.top_k or None,
        top_p=params.top_p or 1.0,
        min_p=params.min_p,
    )


def _log_prob(logits: FloatArray, token: int, state: SamplerState) -> float | None:
    """Return log softmax(logits)[token] of the model's own logits, before any parameter applies.

    Source: the "raw" log-probabilities of TensorRT-LLM's PyTorch backend and of vLLM 1;
    TensorRT-LLM's C++ layers normalize over what top-k and top-p left.
    """
    if not state.request.return_log_probs:
        return None
    peak = logits.max()
    total = np.exp(logits - peak).sum(dtype=np.float64)
    return float(np.float64(logits[token]) - np.float64(peak) - np.log(total))
