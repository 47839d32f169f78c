from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from llmc.builders.casting import cast, first_not_finite
from llmc.dtypes import WEIGHT_DTYPES, numpy_dtype

EVERY_16_BITS = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)


def every_finite(dtype: str) -> npt.NDArray[Any]:
    """Return every finite value of a 16-bit type, or float32s around every bfloat16's ties."""
    if dtype != "float32":
        values: npt.NDArray[Any] = EVERY_16_BITS.view(numpy_dtype(dtype))
        finite: npt.NDArray[Any] = values[np.isfinite(values.astype(np.float32))]
        return finite
    upper = EVERY_16_BITS.astype(np.uint32) << 16
    bits = np.concatenate([upper + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    wide = bits.astype(np.uint32).view(np.float32)
    finite = wide[np.isfinite(wide)]
    return finite


@pytest.mark.parametrize("source", WEIGHT_DTYPES)
@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
def test_every_value_rounds_to_nearest_even(source: str, dtype: str) -> None:
    values = every_finite(source)
    with np.errstate(over="ignore"):
        wanted = values.astype(np.float64).astype(numpy_dtype(dtype))
        if dtype == "bfloat16":  # ml_dtypes rounds correctly from float32, which holds every source
            wanted = values.astype(np.float32).astype(ml_dtypes.bfloat16)
    got = cast(values, dtype)
    assert got.dtype == numpy_dtype(dtype)
    assert got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_value_that_is_not_finite_is_found(dtype: str, value: float) -> None:
    array = np.zeros((4, 5), numpy_dtype(dtype))
    assert first_not_finite(array) is None
    array[3, 1] = value
    array[2, 4] = value
    assert first_not_finite(array) == (2, 4)


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
def test_every_finite_value_counts_as_finite(dtype: str) -> None:
    assert first_not_finite(every_finite(dtype)) is None
    assert first_not_finite(np.empty((0, 3), numpy_dtype(dtype))) is None
