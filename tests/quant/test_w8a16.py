from typing import Any

import ml_dtypes
import numpy as np
import pytest

from llmc.quant import format, w8a16


def test_rounding_is_half_away_from_zero() -> None:
    # amax 128 makes the scale 1, so the values are what is rounded.
    row = [0.5, -0.5, 1.5, -1.5, 2.5, 0.49999997, -0.49999997, 127.49, 128.0, -128.0]
    values, scale = w8a16.quantize(np.array([row], np.float32))
    assert scale.tolist() == [1.0]
    assert values.tolist() == [[1, -1, 2, -2, 3, 0, 0, 127, 127, -128]]


def test_a_row_of_zeros_stays_zero() -> None:
    values, scale = w8a16.quantize(np.zeros((2, 8), np.float16))
    assert not values.any() and not scale.any()
    assert np.isfinite(w8a16.dequantize(values, scale)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_the_error_is_at_most_half_a_step_and_one_at_the_top(dtype: Any) -> None:
    weight = np.random.default_rng(0).standard_normal((33, 257)).astype(dtype)
    values, scale = w8a16.quantize(weight)
    error = np.abs(w8a16.dequantize(values, scale) - weight.astype(np.float32))
    # The largest positive value would be 128 and is clamped to 127: one whole step.
    step = np.where(values == 127, 1.0, 0.5) * scale[:, None]
    assert (error <= step * 1.0001).all()


def test_only_the_stored_scale_is_rounded() -> None:
    weight = np.random.default_rng(1).standard_normal((16, 64)).astype(np.float32)
    values, scale = w8a16.quantize(weight)
    rounded_values, rounded_scale = w8a16.quantize(weight, dtype="bfloat16")
    np.testing.assert_array_equal(values, rounded_values)
    np.testing.assert_array_equal(
        rounded_scale, scale.astype(ml_dtypes.bfloat16).astype(np.float32)
    )


def test_pieces_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = np.random.default_rng(2).standard_normal((37, 20)).astype(np.float32)
    whole = w8a16.quantize(weight)
    monkeypatch.setattr(format, "CHUNK_BYTES", 4 * 20 * 5)
    pieces = w8a16.quantize(weight)
    np.testing.assert_array_equal(whole[0], pieces[0])
    np.testing.assert_array_equal(whole[1], pieces[1])
