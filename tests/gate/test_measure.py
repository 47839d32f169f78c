"""Windows, steps and sums of a measurement, on engines whose logits are known."""

import math

import numpy as np
import numpy.typing as npt
import pytest

from llmc.errors import CheckpointError, UnsupportedError
from llmc.gate.measure import measure
from llmc.gate.record import Divergence, TextMeasurement
from llmc.log import NullProgress
from llmc.runtime.batch import Batch
from tests.gate.fakes import VOCAB, FakeEngine, logits_of, number_tokenizer, numbers

IDS = np.random.default_rng(0).integers(0, VOCAB, 150).tolist()


def run(
    reference: FakeEngine | None, candidate: FakeEngine, ids: list[int] = IDS, limit: int = 4096
) -> TextMeasurement:
    texts = [numbers("text", ids)]
    (found,) = measure(
        reference, candidate, number_tokenizer(), texts, max_tokens=limit, progress=NullProgress()
    )
    return found


def divergence(found: TextMeasurement) -> Divergence:
    assert found.divergence is not None
    return found.divergence


def loss(prefix: list[int], target: int) -> float:
    logits = logits_of(prefix).astype(np.float64)
    return float(np.log(np.exp(logits).sum()) - logits[target])


def test_every_token_predicts_the_next_of_its_window() -> None:
    """150 tokens of an engine for 100 are two windows of 75."""
    engine = FakeEngine()
    found = run(None, engine)
    assert engine.positions == [*range(75), *range(75)]
    losses = [
        loss(window[: at + 1], window[at + 1])
        for window in (IDS[:75], IDS[75:])
        for at in range(74)
    ]
    assert found.perplexity == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-9)
    assert (found.num_tokens, found.nonfinite_tokens, found.divergence) == (150, 0, None)


@pytest.mark.parametrize(
    ("steps", "block", "length"), [(1, 8, 100), (7, 32, 100), (64, 128, 100), (64, 8, 300)]
)
def test_limits_of_an_engine_do_not_change_the_numbers(steps: int, block: int, length: int) -> None:
    """The reference has its own blocks; the windows are what fits both."""
    candidate = FakeEngine(max_num_tokens=steps, tokens_per_block=block, max_seq_len=length)
    found = run(FakeEngine(), candidate)
    assert divergence(found).mean_kl == 0
    assert divergence(found).top1_agreement == 1
    assert divergence(found).perplexity_increase == 0
    assert found.perplexity == run(None, FakeEngine()).perplexity


def at_position(position: int, change: float) -> FakeEngine:
    """Return an engine that prefers token 7 by `change` at one position."""

    def distort(logits: npt.NDArray[np.float32], batch: Batch) -> npt.NDArray[np.float32]:
        logits[batch.positions == position, 7] += np.float32(change)
        return logits

    return FakeEngine(distort=distort)


def test_one_bad_position_is_found() -> None:
    found = divergence(run(FakeEngine(), at_position(40, 30.0)))
    # Two windows of 75 have a position 40 each.
    assert found.worst[0].index in (40, 115) and found.worst[1].index in (40, 115)
    assert found.worst[0].candidate == "7"
    assert found.worst[0].context.split()[-1] == str(IDS[found.worst[0].index])
    assert found.worst[2].kl == 0
    assert found.max_kl == found.worst[0].kl > 10
    assert found.mean_kl == pytest.approx((found.worst[0].kl + found.worst[1].kl) / 150)
    assert found.top1_agreement == pytest.approx(148 / 150)
    assert [kl > 0 for kl in found.kl_by_position if kl is not None] == [
        *(False, False, True, False, False)
    ]


def test_tokens_without_numbers_are_counted_and_left_out() -> None:
    found = run(FakeEngine(), at_position(40, math.nan))
    assert found.nonfinite_tokens == 2
    assert divergence(found).mean_kl == 0
    found = run(FakeEngine(), FakeEngine(distort=lambda logits, _: logits * np.nan))
    assert (found.nonfinite_tokens, found.perplexity, found.divergence) == (150, None, None)


def test_flat_logits_are_counted() -> None:
    assert run(None, FakeEngine(distort=lambda logits, _: logits * 0)).flat_tokens == 150


def test_absurd_loss_is_a_number() -> None:
    found = run(FakeEngine(), FakeEngine(distort=lambda logits, _: logits * 1e6))
    assert found.perplexity == math.exp(700)


def test_broken_reference_is_not_blamed_on_the_engine() -> None:
    with pytest.raises(UnsupportedError, match="the reference's logits are not finite"):
        run(at_position(3, math.inf), FakeEngine())


def test_other_vocabulary_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="20 tokens, expected the engine's 30"):
        run(FakeEngine(), FakeEngine(vocab_size=30))


def test_text_is_cut_to_what_is_wanted_and_known(caplog: pytest.LogCaptureFixture) -> None:
    assert run(None, FakeEngine(), [1, 2, 25, 3]).num_tokens == 3
    assert "1 tokens are outside the model's 20" in caplog.text
    engine = FakeEngine()
    assert run(None, engine, limit=10).num_tokens == 10
    assert engine.positions == list(range(10))
    with pytest.raises(CheckpointError, match="text: 1 tokens, expected at least 2"):
        run(None, FakeEngine(), [3])
