"""What W8A16 and W4A16 share: integer weights, one symmetric scale per output channel, by bits.

A checkpoint holds such a format in one of two forms. Portable: plain weights and the `quant_algo`,
quantized by each target at build, as TensorRT-LLM does for ModelOpt's int8_wo and int4_wo. Packed:
the tensors declared here, the weight permuted for one GPU generation (llmc.quant.layouts).

Source: NVIDIA/TensorRT-LLM 0.17 cpp/tensorrt_llm/kernels/cutlass_kernels/cutlass_preprocessors.cpp,
symmetric_quantize: scale = amax / 2^(bits - 1) in float32; value = weight / scale rounded half away
from zero and clamped to the integers of so many bits; of [in, out], two columns of INT4 per byte,
the even one in the lower four bits; only the stored scale is rounded to the model's dtype.
"""

from typing import Any, Literal

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


def weight_only_format(algo: str, *, bits: Literal[4, 8]) -> QuantFormat:
    """Return the format `algo` of so many bits a weight."""
    top = 2 ** (bits - 1)
    per_byte = 8 // bits

    def encode(weight: npt.NDArray[Any], choice: Choice) -> Elements:
        """Round with the unrounded scale; return the scale rounded to the model's dtype."""
        amax = group_amax(weight, 1) if choice.weight_amax is None else choice.weight_amax
        scale = amax / np.float32(top)
        values = integers.encode(
            weight, scale, lowest=-top, highest=top - 1, rounding=integers.half_away
        )
        stored = scale.astype(numpy_dtype(choice.dtype)).astype(np.float32)
        return Elements(values=values, scale=stored)

    def pack(elements: Elements, choice: Choice) -> QuantizedLinear:
        """Transpose the weight to [in, out], and pack INT4 along out."""
        values = np.ascontiguousarray(elements.values.T)
        return QuantizedLinear(
            tensors={
                "weight": values if bits == 8 else integers.pack_nibbles(values, 1),
                "per_channel_scale": elements.scale[:, 0].astype(numpy_dtype(choice.dtype)),
            }
        )

    def unpack(quantized: QuantizedLinear) -> Elements:
        """Undo `pack`."""
        weight = quantized.tensors["weight"]
        values = weight if bits == 8 else integers.unpack_nibbles(weight, 1)
        return Elements(
            values=np.ascontiguousarray(values.T),
            scale=quantized.tensors["per_channel_scale"].astype(np.float32)[:, None],
        )

    weight = QuantTensor(
        role="weight",
        dtype="int8",
        shape=lambda num_out, num_in, group: (num_in, num_out // per_byte),
        out_axis=1,
        in_axis=0,
    )
    scale = QuantTensor(
        role="per_channel_scale",
        dtype=None,
        shape=lambda num_out, num_in, group: (num_out,),
        out_axis=0,
    )
    return QuantFormat(
        algo=algo,
        granularity="per_channel",
        activation="none",
        needs_calibration=False,
        in_checkpoint="plain",
        tensors=(weight, scale),
        encode=encode,
        pack=pack,
        unpack=unpack,
        weight_bits=bits,
        needs_layout=True,
        after_split=True,
    )
