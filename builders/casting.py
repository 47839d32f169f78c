"""Checked conversion between the float types of weights, rounding to nearest, ties to even."""

from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.dtypes import WEIGHT_DTYPES, dtype_name, numpy_dtype

_EXPONENT_BITS = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}
_BIT_TYPES: dict[int, type[np.unsignedinteger[Any]]] = {2: np.uint16, 4: np.uint32}


def first_not_finite(array: npt.NDArray[Any]) -> tuple[int, ...] | None:
    """Return the index of the first NaN or infinity, or None."""
    mask = _EXPONENT_BITS[dtype_name(array.dtype)]
    bits = array.view(_BIT_TYPES[array.itemsize])
    # All exponent bits set: NaN or infinity, in each of the three types.
    exponents = bits & bits.dtype.type(mask)
    if array.size == 0 or int(exponents.max()) != mask:
        return None
    return tuple(int(i) for i in np.unravel_index(int(exponents.argmax()), array.shape))


def cast(array: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """Return `array` of finite values in `dtype`; what is too large for it becomes an infinity.

    The array itself when it has that dtype.
    """
    source = dtype_name(array.dtype)
    assert source in WEIGHT_DTYPES and dtype in WEIGHT_DTYPES, (source, dtype)
    with np.errstate(over="ignore"):
        return array.astype(numpy_dtype(dtype), copy=False)
