"""Quantize, Dequantize and DynamicQuantize: per tensor, per channel, per block."""

import torch

from llmc.builders.targets.tensorrt_interpreter.graph import Layer
from llmc.builders.targets.tensorrt_interpreter.inputs import (
    Inputs,
    Mode,
    choose,
    optional,
    tensor,
)
from llmc.builders.targets.tensorrt_interpreter.numbers import (
    FP4_MAX,
    FP8_MAX,
    ROUND,
    to_e8m0,
    to_fp4,
    to_fp8,
)
from llmc.errors import BuildError, UnsupportedError


def quantize(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    """Round x / scale to the output's type, ties to even, saturating."""
    x = tensor(layer, inputs, 0)
    return choose(layer, "to_type", ROUND)(x / _scale(layer, inputs, x))


def dequantize(layer: Layer, inputs: Inputs, mode: Mode) -> torch.Tensor:
    x = tensor(layer, inputs, 0).to(torch.float32)
    return x * _scale(layer, inputs, x)


def dynamic_quantize(layer: Layer, inputs: Inputs, mode: Mode) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize blocks of one axis by scales computed here; returns values and scales.

    FP4 with FP8 scales: scale = fp8(amax / 6 / global), values fp4(x / (scale * global)), global
    is input 1. FP8 with E8M0 scales: scale the least power of two >= amax / 448. Source: NVFP4 and
    MXFP8 in TensorRT's documentation of quantized types.
    """
    x, whole = tensor(layer, inputs, 0), optional(inputs, 1)
    axis, size = _block(layer, x)
    x = x.movedim(axis, -1)
    blocks = x.reshape(*x.shape[:-1], -1, size)
    amax = blocks.abs().amax(-1, keepdim=True)
    types = (layer.attrs["to_type"], layer.attrs["scale_type"])
    if types == ("FP4", "FP8"):
        if whole is None:
            raise UnsupportedError(f"{layer.name}: FP4 without a scale of its scales")
        scales = to_fp8(amax / FP4_MAX / whole)
        steps = scales * whole
        values = to_fp4(torch.where(steps > 0, blocks / steps, 0.0))
    elif types == ("FP8", "E8M0"):
        scales = to_e8m0(amax / FP8_MAX)
        values = to_fp8(blocks / scales)
    else:
        raise UnsupportedError(f"{layer.name}: DYNAMIC_QUANTIZE to {types[0]} with {types[1]}")
    return values.flatten(-2).movedim(-1, axis), scales.flatten(-2).movedim(-1, axis)


def _block(layer: Layer, x: torch.Tensor) -> tuple[int, int]:
    """Return axis and length of a block, from whichever form of the layer this is."""
    shape = layer.attrs["block_shape"]
    if not shape:
        return layer.attrs["axis"] % x.dim(), layer.attrs["block_size"]
    lengths = [x.shape[axis] if length == -1 else length for axis, length in enumerate(shape)]
    blocked = [axis for axis, length in enumerate(lengths) if length > 1]
    if len(blocked) != 1:
        raise UnsupportedError(f"{layer.name}: DYNAMIC_QUANTIZE by blocks of {shape}")
    return blocked[0], lengths[blocked[0]]


def _scale(layer: Layer, inputs: Inputs, x: torch.Tensor) -> torch.Tensor:
    """Return the scales in a shape that broadcasts over x.

    One number: per tensor. One axis: per channel of `axis`. As many axes as x: each scale serves
    as many elements of an axis as the lengths divide to.
    """
    scale, zero_point = tensor(layer, inputs, 1), optional(inputs, 2)
    if zero_point is not None and bool(zero_point.any()):
        raise UnsupportedError(f"{layer.name}: {layer.kind} with a zero point, TensorRT has none")
    if scale.numel() == 1:
        return scale.reshape(())
    if scale.dim() == 1:
        axis = layer.attrs["axis"] % x.dim()
        if scale.shape[0] != x.shape[axis]:
            raise BuildError(f"{layer.name}: {scale.shape[0]} scales for {x.shape[axis]} channels")
        return scale.reshape([-1 if place == axis else 1 for place in range(x.dim())])
    if scale.dim() != x.dim():
        raise BuildError(f"{layer.name}: scales {tuple(scale.shape)} for {tuple(x.shape)}")
    for axis, (length, count) in enumerate(zip(x.shape, scale.shape, strict=True)):
        if length % count:
            raise BuildError(f"{layer.name}: scales {tuple(scale.shape)} for {tuple(x.shape)}")
        scale = scale.repeat_interleave(length // count, axis)
    return scale
