"""Torch reference of `linear`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from llmc.plugins.linear.quantized import InputRounding, interpret
from llmc.quant import nvfp4
from llmc.quant.format import Choice, decode, load_format

Stored = Sequence[npt.NDArray[Any]]
"""A role's arrays, one for each module of the product."""


def evaluate(
    x: torch.Tensor,
    *,
    weight: torch.Tensor | Stored,
    bias: torch.Tensor | None = None,
    in_features: int,
    out_features: int,
    quant: str,
    stored_quantized: bool = False,
    layout: str | None = None,
    per_channel_scale: Stored | None = None,
    weights_scaling_factor: Stored | None = None,
    weights_scaling_factor_2: Stored | None = None,
    zero: Stored | None = None,
    prequant_scaling_factor: Stored | None = None,
    activation_scaling_factor: Stored | None = None,
    act_scale: Stored | None = None,
    scale_to_int: Stored | None = None,
    smoother: Stored | None = None,
    clamp_val: Stored | None = None,
) -> torch.Tensor:
    """Return x @ weight.T + bias, [T, out_features].

    With `quant` the weight [out_features, in_features] is quantized first, from its own dtype (in
    which the scales are kept), and dequantized to that of x. With `stored_quantized` the weight and
    the roles after it are what the checkpoint holds, one array for each module; x is rounded as
    they say and scaled back, and the product is of float32.
    """
    if not stored_quantized:
        assert isinstance(weight, torch.Tensor) and weight.shape == (out_features, in_features)
        matrix = weight if quant == "none" else _rounded(weight, quant)
        return torch.nn.functional.linear(x, matrix.to(x.dtype), bias)
    assert not isinstance(weight, torch.Tensor)
    roles = {
        "weight": weight,
        "per_channel_scale": per_channel_scale,
        "weights_scaling_factor": weights_scaling_factor,
        "weights_scaling_factor_2": weights_scaling_factor_2,
        "zero": zero,
        "prequant_scaling_factor": prequant_scaling_factor,
        "activation_scaling_factor": activation_scaling_factor,
        "act_scale": act_scale,
        "scale_to_int": scale_to_int,
        "smoother": smoother,
        "clamp_val": clamp_val,
    }
    given = {role: tensors for role, tensors in roles.items() if tensors is not None}
    elements, rounding = interpret(quant, layout, given)
    decoded = torch.from_numpy(decode(elements))
    assert decoded.shape == (out_features, in_features), decoded.shape
    wide = None if bias is None else bias.float()
    return torch.nn.functional.linear(round_input(x.float(), rounding), decoded, wide).to(x.dtype)


def round_input(x: torch.Tensor, rounding: InputRounding) -> torch.Tensor:
    """Return what is left of x [T, in] once scaled and rounded, with the rounding's scale."""
    if rounding.factor is not None:
        x = x * torch.from_numpy(rounding.factor)
    if rounding.divisor is not None:
        x = x / torch.from_numpy(rounding.divisor)
    if rounding.bound is not None:
        x = x.clamp(-rounding.bound, rounding.bound)
    if rounding.number is None:
        return x
    if rounding.number == "e2m1":
        assert rounding.scale is not None
        return _round_blocks(x, rounding.scale)
    most = 127.0 if rounding.number == "int8" else 448.0
    if rounding.scale is None:
        scale = x.abs().amax(dim=1, keepdim=True) / most
        # Source: NVIDIA/TensorRT-LLM 0.17, minimal scale of FP8 per-token quantization.
        scale = scale.clamp(min=1 / (448 * 512) if rounding.number == "e4m3" else 1e-30)
    else:
        scale = torch.tensor(rounding.scale)
    steps = x * (1 / scale)
    if rounding.number == "int8":
        return steps.clamp(-128, 127).round() * scale
    return steps.clamp(-most, most).to(torch.float8_e4m3fn).float() * scale


def _round_blocks(x: torch.Tensor, whole: float) -> torch.Tensor:
    blocks = x.reshape(x.shape[0], -1, nvfp4.BLOCK)
    scale = blocks.abs().amax(dim=2, keepdim=True) / (6 * torch.tensor(whole))
    scale = scale.clamp(max=448).to(torch.float8_e4m3fn).float() * torch.tensor(whole)
    steps = torch.where(scale > 0, blocks / scale, 0)
    codes = nvfp4.to_e2m1(steps.numpy())
    signed = np.where(codes >= 8, -1, 1) * nvfp4.MAGNITUDES[codes & 7]
    return (torch.from_numpy(signed).float() * scale).reshape(x.shape)


def _rounded(weight: torch.Tensor, quant: str) -> torch.Tensor:
    """Return what is left of `weight` once quantized, in float32."""
    form = load_format(quant)
    dtype = str(weight.dtype).removeprefix("torch.")
    return torch.from_numpy(decode(form.encode(weight.float().numpy(), Choice(dtype=dtype))))
