"""Torch reference of `linear`."""

import torch

from llmc import lookup
from llmc.quant import FORMATS
from llmc.quant.format import QuantFormat


def evaluate(
    x: torch.Tensor,
    *,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    in_features: int,
    out_features: int,
    quant: str,
) -> torch.Tensor:
    """Return x @ weight.T + bias, [T, out_features].

    With `quant` the weight [out_features, in_features] is quantized first, from its own dtype (in
    which the scales are kept), and dequantized to that of x.
    """
    assert weight.shape == (out_features, in_features), weight.shape
    if quant != "none":
        weight = _rounded(weight, quant)
    return torch.nn.functional.linear(x, weight.to(x.dtype), bias)


def _rounded(weight: torch.Tensor, quant: str) -> torch.Tensor:
    """Return what is left of `weight` once quantized, in float32."""
    module = lookup.load(FORMATS, quant, package="llmc.quant", kind="quantization")
    quant_format: QuantFormat = module.FORMAT
    dtype = str(weight.dtype).removeprefix("torch.")
    values, scale = quant_format.quantize(weight.float().numpy(), dtype=dtype)
    return torch.from_numpy(quant_format.dequantize(values, scale))
