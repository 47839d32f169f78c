"""W8A16: INT8 weights, one symmetric scale per output channel, activations as they are.

In a checkpoint this format is portable: plain weights and `quant_algo` W8A16, quantized by each
target at build, as TensorRT-LLM does for ModelOpt's int8_wo. TensorRT-LLM's convert_checkpoint
writes the same numbers transposed and permuted for one GPU generation; that is never written here.

Source: NVIDIA/TensorRT-LLM 0.17 cpp/tensorrt_llm/kernels/cutlass_kernels/cutlass_preprocessors.cpp,
symmetric_quantize: scale = amax / 128 in float32; value = weight / scale rounded half away from
zero and clamped to [-128, 127]; only the stored scale is rounded to the model's dtype.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.dtypes import numpy_dtype
from llmc.quant.format import QuantFormat

_CHUNK_BYTES = 8 << 20
_RANGE = np.float32(128)


def quantize(
    weight: npt.NDArray[Any], *, dtype: str = "float32"
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Quantize weight [out, in] of any float type into (int8 [out, in], scale float32 [out]).

    The scale's values are rounded to `dtype`, in which a GPU engine would store them. Rows are
    processed in pieces: memory beyond the result stays under about 32 MiB, or five float32 rows.
    """
    num_out, num_in = weight.shape
    values: npt.NDArray[np.int8] = np.empty((num_out, num_in), np.int8)
    scale: npt.NDArray[np.float32] = np.zeros(num_out, np.float32)
    step = max(1, _CHUNK_BYTES // (4 * max(1, num_in)))
    for start in range(0, num_out, step):
        rows = np.asarray(weight[start : start + step], dtype=np.float32)
        row_scale = np.abs(rows).max(axis=1, initial=0) / _RANGE
        # A row of zeros has scale 0 and quantizes to zeros.
        scaled = rows / np.where(row_scale > 0, row_scale, np.float32(1))[:, None]
        whole = np.trunc(scaled)
        # Adding 0.5 before truncating would round 0.49999997 up; the remainder is exact.
        whole += np.copysign(np.abs(scaled - whole) >= 0.5, scaled)
        values[start : start + step] = np.clip(whole, -128, 127).astype(np.int8)
        scale[start : start + step] = row_scale
    return values, scale.astype(numpy_dtype(dtype)).astype(np.float32)


def dequantize(values: npt.NDArray[Any], scale: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return values [out, in] times scale [out] as float32 [out, in]."""
    product: npt.NDArray[np.float32] = values.astype(np.float32)
    product *= scale[:, None]
    return product


FORMAT = QuantFormat(
    algo="W8A16",
    granularity="per_channel",
    needs_calibration=False,
    in_checkpoint="plain",
    quantize=quantize,
    dequantize=dequantize,
)
