"""W4A16: INT4 weights, one symmetric scale per output channel, activations as they are.

Portable and packed forms as for W8A16.

Source: NVIDIA/TensorRT-LLM 0.17 cpp/tensorrt_llm/kernels/cutlass_kernels/cutlass_preprocessors.cpp,
symmetric_quantize: scale = amax / 8 in float32; value = weight / scale rounded half away from zero
and clamped to [-8, 7]; two columns of [in, out] per byte, the even one in the lower four bits; only
the stored scale is rounded to the model's dtype.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.dtypes import numpy_dtype
from llmc.quant import integers
from llmc.quant.format import (
    Choice,
    Elements,
    QuantFormat,
    QuantizedLinear,
    QuantTensor,
    group_amax,
)

_RANGE = np.float32(8)


def encode(weight: npt.NDArray[Any], choice: Choice) -> Elements:
    """Round to INT4 with the unrounded scale; return the scale rounded to the model's dtype."""
    amax = group_amax(weight, 1) if choice.weight_amax is None else choice.weight_amax
    scale = amax / _RANGE
    values = integers.encode(weight, scale, lowest=-8, highest=7, rounding=integers.half_away)
    stored = scale.astype(numpy_dtype(choice.dtype)).astype(np.float32)
    return Elements(values=values, scale=stored)


def pack(elements: Elements, choice: Choice) -> QuantizedLinear:
    """Transpose the weight to [in, out] and pack along out."""
    return QuantizedLinear(
        tensors={
            "weight": integers.pack_nibbles(np.ascontiguousarray(elements.values.T), 1),
            "per_channel_scale": elements.scale[:, 0].astype(numpy_dtype(choice.dtype)),
        }
    )


def unpack(quantized: QuantizedLinear) -> Elements:
    """Undo `pack`."""
    return Elements(
        values=np.ascontiguousarray(integers.unpack_nibbles(quantized.tensors["weight"], 1).T),
        scale=quantized.tensors["per_channel_scale"].astype(np.float32)[:, None],
    )


FORMAT = QuantFormat(
    algo="W4A16",
    granularity="per_channel",
    activation="none",
    needs_calibration=False,
    in_checkpoint="plain",
    tensors=(
        QuantTensor(
            role="weight",
            dtype="int8",
            shape=lambda num_out, num_in, group: (num_in, num_out // 2),
            out_axis=1,
            in_axis=0,
        ),
        QuantTensor(
            role="per_channel_scale",
            dtype=None,
            shape=lambda num_out, num_in, group: (num_out,),
            out_axis=0,
        ),
    ),
    encode=encode,
    pack=pack,
    unpack=unpack,
    weight_bits=4,
    needs_layout=True,
    after_split=True,
)
