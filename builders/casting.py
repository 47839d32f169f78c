"""Checked conversion between the float types of weights.

numpy's casts to and from ml_dtypes.bfloat16 hold the interpreter lock; the integer arithmetic here
does not, so threads convert side by side. Rounding is to nearest, ties to even, everywhere.
"""

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

    Peak memory beyond the result is a float32 copy and an integer copy of the array.
    """
    source = dtype_name(array.dtype)
    assert source in WEIGHT_DTYPES and dtype in WEIGHT_DTYPES, (source, dtype)
    if source == dtype:
        return array
    if source == "bfloat16":
        bits = array.view(np.uint16).astype(np.uint32)
        bits <<= 16
        wide: npt.NDArray[np.float32] = bits.view(np.float32)
    else:
        wide = array.astype(np.float32, copy=False)
    if dtype == "bfloat16":
        bits = wide.view(np.uint32)
        # Half of the last kept place, less one unless the kept part is odd: ties go to even.
        rounded = bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))
        return (rounded >> 16).astype(np.uint16).view(numpy_dtype("bfloat16"))
    with np.errstate(over="ignore"):
        return wide.astype(numpy_dtype(dtype), copy=False)
