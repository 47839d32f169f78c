"""W8A16: INT8 weights, one symmetric scale per output channel, activations as they are."""

from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.quant.format import Choice
from llmc.quant.weight_only import weight_only_format

FORMAT = weight_only_format("W8A16", bits=8)


def quantize(
    weight: npt.NDArray[Any], *, dtype: str = "float32"
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Quantize weight [out, in] of any float type into (int8 [out, in], scale float32 [out]).

    The scale's values are rounded to `dtype`, in which a GPU engine would store them. Rows are
    processed in pieces: memory beyond the result stays under about 40 MiB, or five float32 rows.
    """
    elements = FORMAT.encode(weight, Choice(dtype=dtype))
    return elements.values, elements.scale[:, 0]


def dequantize(values: npt.NDArray[Any], scale: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return values [out, in] times scale [out] as float32 [out, in]."""
    product: npt.NDArray[np.float32] = values.astype(np.float32)
    product *= scale[:, None]
    return product
