"""MXFP4, as Hugging Face models come in it: e2m1 numbers, a power of two over each 32 of them.

Only read here: TensorRT-LLM's checkpoint has no such format up to 1.2. Every number has two
significant bits, so float32 and bfloat16 hold it exactly; float16 holds those between 2**-24 and
65504.

Source: OCP Microscaling Formats (MX) 1.0, 5.3.3 (E2M1) and 5.4.1 (E8M0); openai/gpt-oss
gpt_oss/torch/weights.py (two columns per byte, the even one in the lower four bits).

Legend: B blocks of a row.
"""

import numpy as np
import numpy.typing as npt

from llmc.quant.nvfp4 import MAGNITUDES

BLOCK = 32
"""Columns that share a scale."""

_CODES = np.arange(256)
_NUMBERS = np.concatenate([MAGNITUDES, -MAGNITUDES])
_PAIRS = np.stack([_NUMBERS[_CODES & 15], _NUMBERS[_CODES >> 4]], axis=1)
"""A byte's two numbers, [256, 2]."""

_BIAS = 127
_SCALES = np.append(np.ldexp(np.ones(255, np.float32), np.arange(255) - _BIAS), np.float32(np.nan))


def decode(codes: npt.NDArray[np.uint8], scales: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return rows [n, 32 B] of `codes` [n, B, 16] and `scales` [n, B]; scale 255 makes NaN."""
    assert codes.shape == (*scales.shape, BLOCK // 2), (codes.shape, scales.shape)
    numbers: npt.NDArray[np.float32] = _PAIRS[codes].reshape(*scales.shape, BLOCK)
    # 6 * 2**127 is too large, which whoever asked will see.
    with np.errstate(over="ignore"):
        numbers *= _SCALES[scales][..., None]
    return numbers.reshape(len(codes), -1)
