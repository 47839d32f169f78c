"""W8A16: INT8 weights, one symmetric scale per output channel, activations as they are.

A checkpoint holds this format in one of two forms. Portable: plain weights and `quant_algo` W8A16,
quantized by each target at build, as TensorRT-LLM does for ModelOpt's int8_wo. Packed: the tensors
declared here, the weight permuted for one GPU generation (llmc.quant.layouts).

Source: NVIDIA/TensorRT-LLM 0.17 cpp/tensorrt_llm/kernels/cutlass_kernels/cutlass_preprocessors.cpp,
symmetric_quantize: scale = amax / 128 in float32; value = weight / scale rounded half away from
zero and clamped to [-128, 127]; only the stored scale is rounded to the model's dtype.
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

_RANGE = np.float32(128)


def quantize(
    weight: npt.NDArray[Any], *, dtype: str = "float32"
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Quantize weight [out, in] of any float type into (int8 [out, in], scale float32 [out]).

    The scale's values are rounded to `dtype`, in which a GPU engine would store them. Rows are
    processed in pieces: memory beyond the result stays under about 40 MiB, or five float32 rows.
    """
    elements = encode(weight, Choice(dtype=dtype))
    return elements.values, elements.scale[:, 0]


def dequantize(values: npt.NDArray[Any], scale: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return values [out, in] times scale [out] as float32 [out, in]."""
    product: npt.NDArray[np.float32] = values.astype(np.float32)
    product *= scale[:, None]
    return product


def encode(weight: npt.NDArray[Any], choice: Choice) -> Elements:
    """Round to INT8 with the unrounded scale; return the scale rounded to the model's dtype."""
    amax = group_amax(weight, 1) if choice.weight_amax is None else choice.weight_amax
    scale = amax / _RANGE
    values = integers.encode(weight, scale, lowest=-128, highest=127, rounding=integers.half_away)
    stored = scale.astype(numpy_dtype(choice.dtype)).astype(np.float32)
    return Elements(values=values, scale=stored)


def pack(elements: Elements, choice: Choice) -> QuantizedLinear:
    """Transpose the weight to [in, out]."""
    return QuantizedLinear(
        tensors={
            "weight": np.ascontiguousarray(elements.values.T),
            "per_channel_scale": elements.scale[:, 0].astype(numpy_dtype(choice.dtype)),
        }
    )


def unpack(quantized: QuantizedLinear) -> Elements:
    """Transpose the weight back."""
    return Elements(
        values=np.ascontiguousarray(quantized.tensors["weight"].T),
        scale=quantized.tensors["per_channel_scale"].astype(np.float32)[:, None],
    )


FORMAT = QuantFormat(
    algo="W8A16",
    granularity="per_channel",
    activation="none",
    needs_calibration=False,
    in_checkpoint="plain",
    tensors=(
        QuantTensor(
            role="weight",
            dtype="int8",
            shape=lambda num_out, num_in, group: (num_in, num_out),
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
    weight_bits=8,
    needs_layout=True,
    after_split=True,
)
