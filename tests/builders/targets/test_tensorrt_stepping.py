"""The networks TensorRT is given, evaluated layer by layer, against transformers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmc.builders.targets.tensorrt_stepping import SteppedNetwork, lower_ranks
from llmc.errors import BuildError
from tests.builders.targets.tensorrt_networks import (
    MAX_SEQ_LEN,
    TOKENS,
    TOOLKIT,
    lower_tiny,
    read_tokens,
)
from tests.plugins.tiny_llama import VARIANTS, TinyLlama
from tests.runtime.cpu_engines import write_checkpoint


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_transformers(variant: str, tmp_path: Path) -> None:
    """float32, so only the order of sums differs; logits are of the order of 5."""
    tiny = TinyLlama.make(**VARIANTS[variant])
    networks = lower_tiny(tiny, tiny.config(), tmp_path)
    wanted = tiny.logits(TOKENS).numpy()
    np.testing.assert_allclose(read_tokens(networks), wanted, atol=2e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 0.06), ("bfloat16", 0.5)])
def test_typed_evaluation_rounds_as_the_types_do(
    dtype: str, tolerance: float, tmp_path: Path
) -> None:
    """Ideal: weights rounded to the type, nothing else. Typed: each value, so 2^-11 or 2^-8 of
    activations that are as large as the logits, over four layers."""
    tiny = TinyLlama.make()
    networks = lower_tiny(tiny, replace(tiny.config(), dtype=dtype), tmp_path)
    ideal, typed = read_tokens(networks), read_tokens(networks, "typed")
    difference = np.abs(ideal - typed).max()
    assert 1e-4 < difference < tolerance


@pytest.mark.parametrize("tp", [2, 4])
def test_ranks_in_lockstep_equal_transformers(tp: int, tmp_path: Path) -> None:
    tiny = TinyLlama.make(num_key_value_heads=4, vocab_size=97)
    networks = lower_tiny(tiny, tiny.config(tp=tp), tmp_path)
    assert len(networks) == tp
    logits = read_tokens(networks)[:, :97]
    np.testing.assert_allclose(logits, tiny.logits(TOKENS).numpy(), atol=2e-4)


@pytest.mark.parametrize(("variant", "tp", "num_inputs"), [("gqa", 2, 2), ("tied", 1, 1)])
def test_tables_as_inputs_are_the_same_network(
    variant: str, tp: int, num_inputs: int, tmp_path: Path
) -> None:
    """As of plans without weights; tied tables are one input."""
    tiny = TinyLlama.make(**VARIANTS[variant])
    checkpoint = write_checkpoint(tiny, tiny.config(tp=tp), tmp_path / "checkpoint")
    networks = list(lower_ranks(TOOLKIT, checkpoint, max_seq_len=MAX_SEQ_LEN, table_inputs=True))
    for network in networks:
        assert sum(binding.is_weight for binding in network.bindings) == num_inputs
    np.testing.assert_allclose(read_tokens(networks), tiny.logits(TOKENS).numpy(), atol=2e-4)


def test_slots_do_not_see_each_other(tmp_path: Path) -> None:
    """Two texts of different lengths, decoded together from caches that hold garbage beyond."""
    tiny = TinyLlama.make()
    checkpoint = write_checkpoint(tiny, tiny.config(), tmp_path / "checkpoint")
    networks = list(lower_ranks(TOOLKIT, checkpoint, max_seq_len=MAX_SEQ_LEN))
    stepped = SteppedNetwork([networks[0]], mode="ideal", num_slots=2)
    texts, counts = (TOKENS, TOKENS[::-1]), (9, 4)
    # Both contexts are 9 long; the second slot's is cut to 4 by beginning its next tokens there.
    stepped.step([text[:9] for text in texts], [0, 0])
    for step in range(6):
        starts = [count + step for count in counts]
        tokens = [[text[start]] for text, start in zip(texts, starts, strict=True)]
        logits = stepped.step(tokens, starts)
        for slot, (text, start) in enumerate(zip(texts, starts, strict=True)):
            wanted = tiny.logits(text[: start + 1])[-1].numpy()
            np.testing.assert_allclose(logits[slot, 0], wanted, atol=2e-4)


def test_a_position_beyond_the_tables_is_an_error(tmp_path: Path) -> None:
    tiny = TinyLlama.make()
    networks = lower_tiny(tiny, tiny.config(), tmp_path)
    stepped = SteppedNetwork([networks[0]], mode="ideal")
    with pytest.raises(BuildError, match=f"a position outside the table of {MAX_SEQ_LEN}"):
        stepped.step([[1]], [MAX_SEQ_LEN])
