"""W8A8_SQ_PER_CHANNEL: INT8 weights per output channel, inputs scaled per channel, then to INT8.

Source: ModelOpt 0.37 export of int8_sq: weights_scaling_factor = amax / 127 per row, value =
weight / scale rounded half to even and clamped to [-128, 127]; activation_scaling_factor = amax /
127 of the scaled input.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.dtypes import numpy_dtype
from llmc.quant import fp8, integers
from llmc.quant.format import (
    Choice,
    Elements,
    QuantFormat,
    QuantizedLinear,
    QuantTensor,
    group_amax,
    never_zero,
)

_RANGE = np.float32(127)


def encode(weight: npt.NDArray[Any], choice: Choice) -> Elements:
    """Round to INT8 with a scale per row."""
    amax = group_amax(weight, 1) if choice.weight_amax is None else choice.weight_amax
    scale = np.broadcast_to(amax / _RANGE, (weight.shape[0], 1))
    values = integers.encode(weight, scale, lowest=-128, highest=127, rounding=integers.half_even)
    return Elements(values=values, scale=scale)


def pack(elements: Elements, choice: Choice) -> QuantizedLinear:
    """Add the input's scales. Without `choice.prequant` its channels stay as they are."""
    assert choice.input_amax is not None, "W8A8_SQ_PER_CHANNEL needs the largest input"
    num_in = elements.values.shape[1]
    prequant = np.ones(num_in, np.float32) if choice.prequant is None else choice.prequant
    activation = never_zero(np.array([choice.input_amax], np.float32) / _RANGE)
    return QuantizedLinear(
        tensors={
            "weight": elements.values,
            "weights_scaling_factor": np.ascontiguousarray(elements.scale[:, 0]),
            "prequant_scaling_factor": prequant.astype(numpy_dtype(choice.dtype)),
            "activation_scaling_factor": activation,
        }
    )


def unpack(quantized: QuantizedLinear) -> Elements:
    """Return the weight as stored with its scales [out, 1]."""
    scale = quantized.tensors["weights_scaling_factor"].astype(np.float32)[:, None]
    return Elements(values=quantized.tensors["weight"], scale=scale)


FORMAT = QuantFormat(
    algo="W8A8_SQ_PER_CHANNEL",
    granularity="per_channel",
    activation="static int8",
    needs_calibration=True,
    in_checkpoint="quantized",
    tensors=(
        QuantTensor(
            role="weight",
            dtype="int8",
            shape=lambda num_out, num_in, group: (num_out, num_in),
            out_axis=0,
            in_axis=1,
        ),
        QuantTensor(
            role="weights_scaling_factor",
            dtype="float32",
            shape=lambda num_out, num_in, group: (num_out,),
            out_axis=0,
        ),
        QuantTensor(
            role="prequant_scaling_factor",
            dtype=None,
            shape=lambda num_out, num_in, group: (num_in,),
            in_axis=0,
        ),
        fp8.scalar_tensor("activation_scaling_factor"),
    ),
    encode=encode,
    pack=pack,
    unpack=unpack,
    weight_bits=8,
    config={"exclude_modules": ("lm_head",)},
)
