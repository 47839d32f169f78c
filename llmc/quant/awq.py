"""What W4A16_AWQ and W4A8_AWQ share: INT4 in groups along in, and a scale on the inputs.

Source: ModelOpt 0.37 export of int4_awq: scale = amax / 7 per group; value = weight / scale rounded
half to even, clamped to [-8, 7]; two rows of [out, in] per byte, the even one in the lower four
bits; inputs are multiplied by prequant_scaling_factor first.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.dtypes import numpy_dtype
from llmc.quant import integers
from llmc.quant.format import (
    Choice,
    Elements,
    QuantizedLinear,
    QuantTensor,
    group_amax,
)

_RANGE = np.float32(7)

TENSORS = (
    QuantTensor(
        role="weight",
        dtype="int8",
        shape=lambda num_out, num_in, group: (num_out // 2, num_in),
        out_axis=0,
        in_axis=1,
    ),
    QuantTensor(
        role="weights_scaling_factor",
        dtype="float32",
        shape=lambda num_out, num_in, group: (num_out, num_in // group),
        out_axis=0,
        in_axis=1,
    ),
    QuantTensor(
        role="prequant_scaling_factor",
        dtype=None,
        shape=lambda num_out, num_in, group: (num_in,),
        in_axis=0,
    ),
)


def encode(weight: npt.NDArray[Any], choice: Choice) -> Elements:
    """Round to INT4, one scale per `group_size` columns."""
    groups = weight.shape[1] // choice.group_size
    assert groups * choice.group_size == weight.shape[1], (weight.shape, choice.group_size)
    amax = group_amax(weight, groups) if choice.weight_amax is None else choice.weight_amax
    scale = np.broadcast_to(amax / _RANGE, (weight.shape[0], groups))
    values = integers.encode(weight, scale, lowest=-8, highest=7, rounding=integers.half_even)
    return Elements(values=values, scale=scale)


def pack(elements: Elements, choice: Choice) -> QuantizedLinear:
    """Pack two rows per byte. Without `choice.prequant` inputs stay as they are."""
    num_in = elements.values.shape[1]
    prequant = np.ones(num_in, np.float32) if choice.prequant is None else choice.prequant
    assert elements.zero is None and prequant.shape == (num_in,), prequant.shape
    return QuantizedLinear(
        tensors={
            "weight": integers.pack_nibbles(elements.values, 0),
            "weights_scaling_factor": np.ascontiguousarray(elements.scale, np.float32),
            "prequant_scaling_factor": prequant.astype(numpy_dtype(choice.dtype)),
        }
    )


def unpack(quantized: QuantizedLinear) -> Elements:
    """Return the weight as int8 [out, in] and its scales [out, groups]."""
    return Elements(
        values=integers.unpack_nibbles(quantized.tensors["weight"], 0),
        scale=quantized.tensors["weights_scaling_factor"].astype(np.float32),
    )
