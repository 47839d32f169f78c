"""NVFP4: 4-bit e2m1 weights and inputs, an e4m3 scale per 16 of them and one over all.

weight ≈ e2m1 * block scale * weights_scaling_factor_2. Two columns of [out, in] per byte, the even
one in the lower four bits; a nibble is sign, two exponent bits, one mantissa bit.

Source: OCP Microscaling Formats (MX) 1.0, table 5 (E2M1); NVIDIA ModelOpt 0.37 export of nvfp4:
weights_scaling_factor_2 = amax / (6 * 448), block scale = block amax / 6 / weights_scaling_factor_2
rounded to e4m3, values rounded to nearest, halves to the even mantissa.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.quant import fp8
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

BLOCK = 16
MAX = np.float32(6)
MAGNITUDES: npt.NDArray[np.float32] = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
"""The magnitude of each code; code 8 + c is minus that of c."""

_TABLE: npt.NDArray[Any] = np.concatenate([MAGNITUDES, -MAGNITUDES]).astype(fp8.E4M3)
_MIDDLES = (MAGNITUDES[1:] + MAGNITUDES[:-1]) / 2


def global_scale(amax: float) -> np.float32:
    """Return the scale over all blocks; of zeros, 1."""
    return np.float32(never_zero(np.array([amax], np.float32) / (MAX * fp8.MAX))[0])


def to_e2m1(scaled: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Return the code of the nearest e2m1, halves to the even mantissa, as uint8."""
    magnitude = np.abs(scaled)
    code: npt.NDArray[np.uint8] = np.zeros(scaled.shape, np.uint8)
    for below, middle in enumerate(_MIDDLES):
        # A tie stays at an even code and leaves an odd one, which has the odd mantissa.
        code += magnitude > middle if below % 2 == 0 else magnitude >= middle
    code |= (scaled < 0).astype(np.uint8) << np.uint8(3)
    return code


def encode(weight: npt.NDArray[Any], choice: Choice) -> Elements:
    """Round to e2m1; `choice.weight_amax` [out, in / 16] are blocks', `global_amax` the whole's."""
    num_out, num_in = weight.shape
    blocks = num_in // BLOCK
    assert blocks * BLOCK == num_in, weight.shape
    amax = group_amax(weight, blocks) if choice.weight_amax is None else choice.weight_amax
    whole = global_scale(
        float(amax.max(initial=0)) if choice.global_amax is None else choice.global_amax
    )
    # As ModelOpt: a block of zeros has scale 1.
    block = np.clip(never_zero(amax / (MAX * whole)), 0, fp8.MAX).astype(fp8.E4M3)
    # A block may be so small that its scale rounds to 0: it becomes zeros.
    scale = np.broadcast_to(block.astype(np.float32) * whole, (num_out, blocks))
    values: npt.NDArray[Any] = np.empty(weight.shape, fp8.E4M3)
    for rows in row_chunks(weight):
        scaled = np.array(weight[rows], np.float32, order="C").reshape(-1, blocks, BLOCK)
        scaled /= never_zero(scale[rows])[:, :, None]
        scaled *= (scale[rows] > 0)[:, :, None]
        values[rows] = _TABLE[to_e2m1(scaled)].reshape(-1, num_in)
    return Elements(values=values, scale=scale)


def pack(elements: Elements, choice: Choice) -> QuantizedLinear:
    """Split scales into the block's and the whole's; exact for what `encode` or `unpack` gave.

    `choice.global_amax` must be that of `encode`; None takes the largest scale to be 448 times the
    whole's, as it is when `encode` had None.
    """
    assert choice.input_amax is not None, "NVFP4 needs the largest input"
    if choice.global_amax is None:
        whole = never_zero(elements.scale.max(initial=0, keepdims=True) / fp8.MAX)[0, 0]
    else:
        whole = global_scale(choice.global_amax)
    codes = codes_of(elements.values)
    return QuantizedLinear(
        tensors={
            "weight": (codes[:, ::2] | (codes[:, 1::2] << 4)).astype(np.uint8),
            "weights_scaling_factor": (elements.scale / whole).astype(fp8.E4M3),
            "weights_scaling_factor_2": np.array(whole, np.float32),
            "activation_scaling_factor": np.array(global_scale(choice.input_amax)),
        }
    )


def codes_of(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the four-bit codes of e2m1 numbers held as e4m3."""
    codes: npt.NDArray[np.uint8] = np.zeros(256, np.uint8)
    codes[_TABLE.view(np.uint8)] = np.arange(16, dtype=np.uint8)
    found: npt.NDArray[np.uint8] = codes[values.view(np.uint8)]
    return found


def unpack(quantized: QuantizedLinear) -> Elements:
    """Return the weight as e2m1 numbers held as e4m3, and its scales [out, in / 16]."""
    packed = quantized.tensors["weight"].view(np.uint8)
    values: npt.NDArray[Any] = np.empty((packed.shape[0], 2 * packed.shape[1]), fp8.E4M3)
    values[:, ::2] = _TABLE[packed & 0x0F]
    values[:, 1::2] = _TABLE[packed >> 4]
    block = quantized.tensors["weights_scaling_factor"].astype(np.float32)
    return Elements(values=values, scale=block * quantized.tensors["weights_scaling_factor_2"])


FORMAT = QuantFormat(
    algo="NVFP4",
    granularity="per_group",
    activation="nvfp4",
    needs_calibration=True,
    in_checkpoint="quantized",
    tensors=(
        QuantTensor(
            role="weight",
            dtype="uint8",
            shape=lambda num_out, num_in, group: (num_out, num_in // 2),
            out_axis=0,
            in_axis=1,
        ),
        QuantTensor(
            role="weights_scaling_factor",
            dtype="float8_e4m3fn",
            shape=lambda num_out, num_in, group: (num_out, num_in // BLOCK),
            out_axis=0,
            in_axis=1,
        ),
        QuantTensor(
            role="weights_scaling_factor_2",
            dtype="float32",
            shape=lambda num_out, num_in, group: (),
        ),
        QuantTensor(
            role="activation_scaling_factor",
            dtype="float32",
            shape=lambda num_out, num_in, group: (),
        ),
    ),
    encode=encode,
    pack=pack,
    unpack=unpack,
    weight_bits=4,
    group_sizes=(BLOCK,),
    config={"group_size": BLOCK, "exclude_modules": ("lm_head",)},
)
