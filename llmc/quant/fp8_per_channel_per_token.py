"""FP8_PER_CHANNEL_PER_TOKEN: e4m3 weights with a scale per output channel, inputs per token.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/quantization/functional.py, postprocess_fp8_rowwise,
byte for byte (tests/goldens): weights clamped to ±1200; scale = amax / 448, at least 1/(448 * 512).
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
)

_LOWEST_SCALE = np.float32(1 / (448 * 512))


def encode(weight: npt.NDArray[Any], choice: Choice) -> Elements:
    """Round to e4m3 with a scale per row."""
    amax = group_amax(weight, 1) if choice.weight_amax is None else choice.weight_amax
    # Clamping the weight to ±1200 can change nothing but its largest magnitude: beyond the scale's
    # 448 steps values are clamped all the same.
    bound = np.float32(min(-choice.clamp[0], choice.clamp[1]))
    assert choice.clamp[0] == -choice.clamp[1], choice.clamp
    scale = np.maximum(np.minimum(amax, bound) / fp8.MAX, _LOWEST_SCALE)
    return Elements(values=fp8.to_e4m3(weight, scale), scale=scale)


def pack(elements: Elements, choice: Choice) -> QuantizedLinear:
    """Add the bounds of the input."""
    return QuantizedLinear(
        tensors={
            "weight": elements.values,
            "per_channel_scale": elements.scale[:, 0],
            "clamp_val": np.array(choice.clamp, np.float32),
        }
    )


def unpack(quantized: QuantizedLinear) -> Elements:
    """Return the weight as stored with its scales [out, 1]."""
    scale = quantized.tensors["per_channel_scale"].astype(np.float32)[:, None]
    return Elements(values=quantized.tensors["weight"], scale=scale)


FORMAT = QuantFormat(
    algo="FP8_PER_CHANNEL_PER_TOKEN",
    granularity="per_channel",
    activation="per-token fp8",
    needs_calibration=False,
    in_checkpoint="quantized",
    tensors=(
        fp8.WEIGHT,
        QuantTensor(
            role="per_channel_scale",
            dtype="float32",
            shape=lambda num_out, num_in, group: (num_out,),
            out_axis=0,
        ),
        QuantTensor(
            role="clamp_val",
            dtype="float32",
            shape=lambda num_out, num_in, group: (2,),
            beside_input=True,
            optional=True,
        ),
    ),
    encode=encode,
    pack=pack,
    unpack=unpack,
    weight_bits=8,
    after_split=True,
    config={"clamp_val": (-1200.0, 1200.0)},
)
