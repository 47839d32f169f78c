"""W4A16_GPTQ: INT4 weights in groups along in, each with a scale and a zero point.

The checkpoint's form is always permuted for one GPU generation (llmc.quant.layouts): TensorRT-LLM
has no portable one. value = code - 8 for a code in 0..15, zero = (8 - zero point) * scale, weight
≈ value * scale + zero. Four columns of [in, out] make one number of the model's dtype.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/quantization/functional.py,
postprocess_weight_only_groupwise (both GPTQ and AutoAWQ checkpoints come to this).
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
    never_zero,
    row_chunks,
)

_STEPS = np.float32(15)
_MIDDLE = np.float32(8)


def encode(weight: npt.NDArray[Any], choice: Choice) -> Elements:
    """Round to 16 steps between the smallest and largest of a group (both with 0 among them).

    `choice.weight_amax` makes a group symmetric: steps of amax / 7 and zero point 8.
    """
    groups = weight.shape[1] // choice.group_size
    assert groups * choice.group_size == weight.shape[1], (weight.shape, choice.group_size)
    stored = numpy_dtype(choice.dtype)
    if choice.weight_amax is None:
        low, high = _group_range(weight, groups)
        scale = ((high - low) / _STEPS).astype(stored).astype(np.float32)
        zero_point = np.clip(np.rint(-low / never_zero(scale)), 0, _STEPS)
    else:
        scale = np.broadcast_to(choice.weight_amax / np.float32(7), (weight.shape[0], groups))
        scale = scale.astype(stored).astype(np.float32)
        zero_point = np.full_like(scale, _MIDDLE)
    zero = ((_MIDDLE - zero_point) * scale).astype(stored).astype(np.float32)
    values = integers.encode(
        weight, scale, lowest=-8, highest=7, rounding=integers.half_even, zero=zero
    )
    return Elements(values=values, scale=scale, zero=zero)


def _group_range(
    weight: npt.NDArray[Any], groups: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    low: npt.NDArray[np.float32] = np.empty((weight.shape[0], groups), np.float32)
    high = np.empty_like(low)
    for rows in row_chunks(weight):
        grouped = np.asarray(weight[rows], np.float32).reshape(
            -1, groups, weight.shape[1] // groups
        )
        low[rows] = grouped.min(axis=2, initial=0)
        high[rows] = grouped.max(axis=2, initial=0)
    return low, high


def pack(elements: Elements, choice: Choice) -> QuantizedLinear:
    """Transpose, pack along out and view as the model's dtype, which must have two bytes."""
    assert elements.zero is not None
    dtype = numpy_dtype(choice.dtype)
    assert dtype.itemsize == 2, choice.dtype
    nibbles = integers.pack_nibbles(np.ascontiguousarray(elements.values.T), 1)
    return QuantizedLinear(
        tensors={
            "weight": nibbles.view(dtype),
            "weights_scaling_factor": np.ascontiguousarray(elements.scale.T).astype(dtype),
            "zero": np.ascontiguousarray(elements.zero.T).astype(dtype),
        }
    )


def unpack(quantized: QuantizedLinear) -> Elements:
    """Undo `pack`."""
    nibbles = quantized.tensors["weight"].view(np.int8)
    return Elements(
        values=np.ascontiguousarray(integers.unpack_nibbles(nibbles, 1).T),
        scale=np.ascontiguousarray(
            quantized.tensors["weights_scaling_factor"].astype(np.float32).T
        ),
        zero=np.ascontiguousarray(quantized.tensors["zero"].astype(np.float32).T),
    )


def _grouped(role: str) -> QuantTensor:
    return QuantTensor(
        role=role,
        dtype=None,
        shape=lambda num_out, num_in, group: (num_in // group, num_out),
        out_axis=1,
        in_axis=0,
    )


FORMAT = QuantFormat(
    algo="W4A16_GPTQ",
    granularity="per_group",
    activation="none",
    needs_calibration=True,
    in_checkpoint="quantized",
    tensors=(
        QuantTensor(
            role="weight",
            dtype=None,
            shape=lambda num_out, num_in, group: (num_in, num_out // 4),
            out_axis=1,
            in_axis=0,
        ),
        _grouped("weights_scaling_factor"),
        _grouped("zero"),
    ),
    encode=encode,
    pack=pack,
    unpack=unpack,
    weight_bits=4,
    group_sizes=(64, 128),
    needs_layout=True,
    config={"has_zero_point": True},
)
