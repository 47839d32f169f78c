from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmc.errors import UnsupportedError
from llmc.quant.layouts import LAYOUTS, arrange, find_layout, restore


def stored(num_in: int, num_out: int, bits: int, seed: int = 0) -> Any:
    generator = np.random.default_rng(seed)
    return generator.integers(-128, 128, (num_in, num_out * bits // 8), np.int8)


@pytest.mark.parametrize("layout", LAYOUTS)
@given(
    num_in=st.sampled_from([64, 128, 192]),
    num_out=st.sampled_from([64, 320]),
    bits=st.sampled_from([4, 8]),
    seed=st.integers(0, 100),
)
def test_restoring_undoes_arranging(
    layout: str, num_in: int, num_out: int, bits: Any, seed: int
) -> None:
    weight = stored(num_in, num_out, bits, seed)
    arranged = arrange(weight, layout, bits=bits)
    assert arranged.shape == weight.shape and arranged.dtype == weight.dtype
    assert (arranged != weight).any()
    np.testing.assert_array_equal(restore(arranged, layout, bits=bits), weight)


def test_every_layout_is_another() -> None:
    weight = stored(128, 64, 4)
    assert len({arrange(weight, layout, bits=4).tobytes() for layout in LAYOUTS}) == len(LAYOUTS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers_of_four_int4_are_seen_through(layout: str) -> None:
    weight = stored(64, 64, 4)
    as_half = arrange(weight.view(np.float16), layout, bits=4)
    assert as_half.dtype == np.float16
    np.testing.assert_array_equal(as_half.view(np.int8), arrange(weight, layout, bits=4))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_experts_are_arranged_one_by_one_as_for_sm80(layout: str) -> None:
    experts = np.stack([stored(64, 128, 8, seed) for seed in range(3)])
    arranged = arrange(experts, layout, bits=8)
    np.testing.assert_array_equal(arranged[1], arrange(experts[1], "sm80", bits=8))
    np.testing.assert_array_equal(restore(arranged, layout, bits=8), experts)


def test_an_unknown_layout_is_named() -> None:
    with pytest.raises(UnsupportedError, match="unknown layout 'sm100'; known: sm80, sm90"):
        find_layout("sm100")
