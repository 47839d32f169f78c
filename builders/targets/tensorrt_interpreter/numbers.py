"""Rounding to the number formats of quantization, on float32 values.

Source: OCP 8-bit Floating Point Specification (E4M3), OCP Microscaling Formats 1.0 (E2M1, E8M0);
ties go to even and what is out of range to the largest, as TensorRT's Quantize layer documents.
"""

from collections.abc import Callable

import torch

FP4_VALUES = (
    0.0,
    0.5,
    1.0,
    1.5,
    2.0,
    3.0,
    4.0,
    6.0,
    -0.0,
    -0.5,
    -1.0,
    -1.5,
    -2.0,
    -3.0,
    -4.0,
    -6.0,
)
"""E2M1 by its four bits, sign first."""

FP8_MAX = 448.0
FP4_MAX = 6.0


def to_fp8(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).to(torch.float32)


def to_int8(x: torch.Tensor) -> torch.Tensor:
    return x.round().clamp(-128, 127)


def to_int4(x: torch.Tensor) -> torch.Tensor:
    return x.round().clamp(-8, 7)


def to_fp4(x: torch.Tensor) -> torch.Tensor:
    """Round to E2M1: steps of 0.5 up to 2, of 1 up to 4, of 2 up to 6."""
    size = x.abs().clamp(max=FP4_MAX)
    step = torch.where(size < 2.0, 0.5, torch.where(size < 4.0, 1.0, 2.0))
    # torch rounds ties to even; a step's multiple is even where the mantissa is.
    return torch.copysign((size / step).round() * step, x)


def to_e8m0(x: torch.Tensor) -> torch.Tensor:
    """Round up to a power of two, so that no element of a block overflows."""
    return torch.exp2(torch.ceil(torch.log2(x.clamp(min=2.0**-127))).clamp(-127, 127))


ROUND: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "FP8": to_fp8,
    "INT8": to_int8,
    "INT4": to_int4,
    "FP4": to_fp4,
}
"""trt.DataType of a Quantize layer's output → rounding to it."""
