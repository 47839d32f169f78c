from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmc.runtime.nucleus import draw
from llmc.runtime.request import Request, SamplingParams
from llmc.runtime.sampling import SamplerState, sample

VOCAB = 500


def row_of(seed: int, scale: float = 3.0, size: int = VOCAB) -> npt.NDArray[np.float32]:
    return (scale * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


def state_of(vocab: int = VOCAB, **fields: Any) -> SamplerState:
    names = {f for f in Request.__dataclass_fields__ if f in fields}
    request = {name: fields.pop(name) for name in names}
    params = SamplingParams(**fields)
    request = {"prompt_ids": (1, 2, 3), "max_tokens": 400, **request}
    return SamplerState(Request(sampling=params, **request), vocab)


def one(logits: npt.NDArray[np.float32], state: SamplerState, tokens: list[int]) -> int:
    (sampled,) = sample(logits[None], [state], [tokens])
    assert sampled is not None
    return sampled.token


def reference_probabilities(
    row: npt.NDArray[np.float32], top_k: int | None, top_p: float, min_p: float
) -> npt.NDArray[np.float64]:
    """The distribution to draw from [V], by sorting everything."""
    order = np.argsort(-row.astype(np.float64), kind="stable")[:top_k]
    weights = np.exp(row[order].astype(np.float64) - float(row.max()))
    keep = 1 + int(((weights / weights.sum()).cumsum() < top_p).sum())
    keep = min(keep, int((weights >= min_p).sum()), len(order))
    out = np.zeros(len(row))
    out[order[:keep]] = weights[:keep] / weights[:keep].sum()
    return out


@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.02, 1.0, 4.0]),
    size=st.sampled_from([5, 64, 130, 1000, 5000]),
    top_k=st.sampled_from([None, 1, 2, 7, 50, 6000]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
)
@settings(max_examples=150, deadline=None)
def test_draws_follow_the_restricted_distribution(
    seed: int, scale: float, size: int, top_k: int | None, top_p: float, min_p: float
) -> None:
    row = row_of(seed, scale, size)
    expected = reference_probabilities(row, top_k, top_p, min_p)
    num_draws = 100
    uniforms = (np.arange(num_draws) + 0.5) / num_draws
    drawn = [draw(row, float(u), top_k=top_k, top_p=top_p, min_p=min_p) for u in uniforms]
    counts = np.bincount(drawn, minlength=size)
    assert not counts[expected == 0.0].any()
    # Each token owns one interval of [0, 1), in whatever order: evenly spaced points hit it within
    # one of its share.
    assert np.abs(counts - num_draws * expected).max() <= 1.0 + 1e-3


def test_ties_go_to_the_lower_id() -> None:
    row = np.zeros(1000, dtype=np.float32)
    row[700:] = 1.0
    for uniform in (0.0, 0.5, 0.999):
        assert 700 <= draw(row, uniform, top_k=3, top_p=1.0, min_p=0.0) < 703
    row[:] = 0.0
    assert draw(row, 0.999, top_k=3, top_p=1.0, min_p=0.0) == 2


def test_banned_tokens_are_never_drawn() -> None:
    row = np.full(130, -np.inf, dtype=np.float32)
    row[[64, 129]] = 0.0
    for kwargs in ({"top_k": None}, {"top_k": 5}):
        drawn = {
            draw(row, u, top_p=1.0, min_p=0.0, **kwargs) for u in (0.0, 0.49, 0.51, 1 - 2**-53)
        }
        assert drawn == {64, 129}


def test_frequencies_follow_the_probabilities() -> None:
    row = row_of(1, 1.0, 40)
    state = state_of(40, temperature=0.7, top_k=0, seed=5)
    num_draws = 4000
    counts = np.bincount([one(row, state, [1, 2, 3]) for _ in range(num_draws)], minlength=40)
    expected = np.exp(row.astype(np.float64) / 0.7)
    expected *= num_draws / expected.sum()
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    # 39 degrees of freedom: 72.1 is exceeded once in a thousand; the seed makes it repeatable.
    assert chi_square < 72.1


@pytest.mark.parametrize(
    ("fields", "greedy"),
    [
        ({}, True),
        ({"top_k": 1, "temperature": 0.9}, True),
        ({"temperature": 0.0, "top_k": 50}, True),
        ({"temperature": 0.7}, True),  # TensorRT-LLM: without top_k and top_p, top_k is 1
        ({"top_k": 0}, False),
        ({"top_k": 50}, False),
        ({"top_p": 0.9}, False),
        ({"top_p": 0.0}, True),
        ({"min_p": 0.1}, False),
    ],
)
def test_what_is_greedy(fields: dict[str, Any], greedy: bool) -> None:
    state = state_of(**fields)
    assert state.greedy is greedy
    row = row_of(3)
    tokens = {one(row, state, [1, 2, 3]) for _ in range(40)}
    assert (tokens == {int(row.argmax())}) is greedy


def test_same_seed_same_tokens_in_any_batch() -> None:
    rows = np.stack([row_of(i) for i in range(6)])

    def run(seeds: list[int | None], order: list[int]) -> dict[int, list[int]]:
        states = [state_of(top_p=0.95, seed=seed) for seed in seeds]
        out: dict[int, list[int]] = {i: [] for i in order}
        for _ in range(10):
            drawn = sample(rows[order], [states[i] for i in order], [[1, 2, 3]] * len(order))
            for i, sampled in zip(order, drawn, strict=True):
                assert sampled is not None
                out[i].append(sampled.token)
        return out

    seeds: list[int | None] = [7, 7, None, 0, 2**64 - 1, 8]
    together = run(seeds, [0, 1, 2, 3, 4, 5])
    assert run(seeds, [4, 2, 0]) == {i: together[i] for i in (4, 2, 0)}
    rows[1] = rows[0]
    rows[2] = rows[3]
    again = run(seeds, [0, 1, 2, 3, 5])
    assert again[0] == again[1], "equal seeds"
    assert again[2] == again[3], "no seed is seed 0"
    rows[5] = rows[0]
    assert run(seeds, [5])[5] != again[0], "another seed"


def reference_process(
    row: npt.NDArray[np.float32], params: SamplingParams, tokens: list[int]
) -> npt.NDArray[np.float64]:
    out = row.astype(np.float64) / params.temperature
    for token in range(len(row)):
        count = tokens.count(token)
        if count:
            value = out[token]
            penalty = params.repetition_penalty
            value = value * penalty if value < 0 else value / penalty
            out[token] = value - params.presence_penalty - params.frequency_penalty * count
    return out


@given(
    repetition=st.sampled_from([1.0, 1.3, 0.5]),
    presence=st.sampled_from([0.0, 0.7, -0.4]),
    frequency=st.sampled_from([0.0, 0.2]),
    temperature=st.sampled_from([1.0, 0.6]),
    prompt=st.lists(st.integers(0, 29), min_size=1, max_size=8),
    output=st.lists(st.integers(0, 29), max_size=8),
)
@settings(max_examples=60, deadline=None)
def test_penalties_match_a_slow_reference(
    repetition: float,
    presence: float,
    frequency: float,
    temperature: float,
    prompt: list[int],
    output: list[int],
) -> None:
    state = state_of(
        30,
        prompt_ids=tuple(prompt),
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        temperature=temperature,
    )
    for token in output:
        state.accept(token)
    row = row_of(9, 2.0, 30)
    before = row.copy()
    tokens = prompt + output
    changed = state.process(row, tokens)
    assert (row == before).all(), "the engine's logits are not ours to change"
    expected = reference_process(row, state.request.sampling, tokens)
    np.testing.assert_allclose(changed, expected, rtol=1e-5, atol=1e-5)  # float32 against float64
    assert one(row, state, tokens) == int(expected.argmax())


def test_a_tiny_temperature_is_greedy_and_not_an_overflow() -> None:
    row = row_of(8)
    assert one(row, state_of(top_k=0, temperature=1e-300), [1, 2, 3]) == int(row.argmax())


def test_repetition_penalty_breaks_a_loop() -> None:
    row = row_of(4)
    best, second = (int(i) for i in np.argsort(-row)[:2])
    state = state_of(frequency_penalty=float(row[best] - row[second]) + 0.1)
    assert one(row, state, [1, 2, 3]) == best
    state.accept(best)
    assert one(row, state, [1, 2, 3, best]) == second


def test_min_tokens_keeps_every_end_id_away() -> None:
    row = row_of(5)
    order = [int(i) for i in np.argsort(-row)[:3]]
    state = state_of(end_ids=(order[0], order[1]), min_tokens=2)
    assert one(row, state, [1, 2, 3]) == order[2]
    assert one(row, state, [1, 2, 3, 9]) == order[2]
    assert one(row, state, [1, 2, 3, 9, 9]) == order[0]


def test_bad_words_ban_tokens_and_the_ends_of_sequences() -> None:
    row = row_of(6)
    first, second, third = (int(i) for i in np.argsort(-row)[:3])
    state = state_of(bad_words=((first,), (8, 9, second)))
    assert one(row, state, [1, 2, 3]) == second
    assert one(row, state, [1, 2, 3, 8, 9]) == third
    assert one(row, state, [1, 2, 3, 9, 8]) == second
    assert one(row, state, [9]) == second, "shorter than the word"


def test_log_probs_are_those_of_the_models_own_logits() -> None:
    rows = np.stack([row_of(i) for i in range(3)])
    states = [
        state_of(return_log_probs=True),
        state_of(return_log_probs=True, top_k=5, temperature=0.3, repetition_penalty=2.0),
        state_of(),
    ]
    drawn = sample(rows, states, [[1, 2, 3]] * 3)
    for row, sampled in zip(rows[:2], drawn[:2], strict=True):
        assert sampled is not None and sampled.log_prob is not None
        exact = row.astype(np.float64)
        expected = exact[sampled.token] - np.log(np.exp(exact).sum())
        assert sampled.log_prob == pytest.approx(expected, abs=1e-5)  # float32 exponentials
    assert drawn[2] is not None and drawn[2].log_prob is None


@pytest.mark.parametrize("fields", [{}, {"top_k": 0}, {"top_p": 0.5}, {"repetition_penalty": 1.1}])
def test_a_row_without_a_finite_choice_stops_only_its_request(fields: dict[str, Any]) -> None:
    rows = np.stack([row_of(1), row_of(2), row_of(3)])
    rows[1, 17] = np.nan
    rows[2] = -np.inf
    drawn = sample(rows, [state_of(**fields) for _ in range(3)], [[1, 2, 3]] * 3)
    assert drawn[0] is not None
    assert drawn[1] is None and drawn[2] is None


def test_everything_banned_is_no_choice() -> None:
    state = state_of(3, bad_words=((0,), (1,), (2,)))
    assert sample(np.zeros((1, 3), np.float32), [state], [[1]]) == [None]
