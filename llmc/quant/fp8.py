"""FP8: e4m3 weights and inputs, one scale each.

Source: ModelOpt 0.37 export of fp8, byte for byte (tests/goldens): scale = amax / 448, value =
weight / scale rounded to the nearest e4m3, halves to even. q, k and v share a scale, and so do fc
and gate.
"""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from llmc.quant.format import (
    Choice,
    Elements,
    QuantFormat,
    QuantizedLinear,
    QuantTensor,
    group_amax,
    never_zero,
    row_chunks,
)

MAX = np.float32(448)
"""The largest finite e4m3. Source: OCP 8-bit Floating Point Specification 1.0, table 1 (E4M3)."""

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)


def scalar(amax: float) -> npt.NDArray[np.float32]:
    """Return the scale of a whole tensor as stored, float32 [1]; of zeros, 1."""
    return never_zero(np.array([amax], np.float32) / MAX)


def scalar_tensor(role: str) -> QuantTensor:
    """Declare a float32 [1] that every rank holds."""
    return QuantTensor(role=role, dtype="float32", shape=lambda num_out, num_in, group: (1,))


def to_e4m3(weight: npt.NDArray[Any], scale: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """Return weight / scale [out or 1, 1], clamped to ±448 and rounded, e4m3 [out, in]."""
    scale = np.broadcast_to(scale, (weight.shape[0], 1))
    values: npt.NDArray[Any] = np.empty(weight.shape, E4M3)
    for rows in row_chunks(weight):
        scaled = np.asarray(weight[rows], np.float32) / scale[rows]
        # ml_dtypes makes what is out of range NaN.
        values[rows] = np.clip(scaled, -MAX, MAX).astype(E4M3)
    return values


def encode(weight: npt.NDArray[Any], choice: Choice) -> Elements:
    """Round to e4m3 with one scale."""
    amax = group_amax(weight, 1) if choice.weight_amax is None else choice.weight_amax
    scale = scalar(float(amax.max(initial=0)))[:, None]
    return Elements(values=to_e4m3(weight, scale), scale=scale)


def pack(elements: Elements, choice: Choice) -> QuantizedLinear:
    """Add the input's scale."""
    assert choice.input_amax is not None, "FP8 needs the largest input"
    assert elements.scale.shape == (1, 1), elements.scale.shape
    return QuantizedLinear(
        tensors={
            "weight": elements.values,
            "weights_scaling_factor": elements.scale[0],
            "activation_scaling_factor": scalar(choice.input_amax),
        }
    )


def unpack(quantized: QuantizedLinear) -> Elements:
    """Return the weight as stored with its scale [1, 1]."""
    scale = quantized.tensors["weights_scaling_factor"].reshape(1, 1)
    return Elements(values=quantized.tensors["weight"], scale=scale)


WEIGHT = QuantTensor(
    role="weight",
    dtype="float8_e4m3fn",
    shape=lambda num_out, num_in, group: (num_out, num_in),
    out_axis=0,
    in_axis=1,
)

FORMAT = QuantFormat(
    algo="FP8",
    granularity="per_tensor",
    activation="static fp8",
    needs_calibration=True,
    in_checkpoint="quantized",
    tensors=(
        WEIGHT,
        scalar_tensor("weights_scaling_factor"),
        scalar_tensor("activation_scaling_factor"),
    ),
    encode=encode,
    pack=pack,
    unpack=unpack,
    weight_bits=8,
    config={"exclude_modules": ("lm_head",)},
)
