"""Torch reference of `linear`."""

import torch

from llmc.quant import w8a16


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
    return torch.nn.functional.linear(x, _ROUNDINGS[quant](weight).to(x.dtype), bias)


def _w8a16(weight: torch.Tensor) -> torch.Tensor:
    dtype = str(weight.dtype).removeprefix("torch.")
    quantized, scale = w8a16.quantize(weight.float().numpy(), dtype=dtype)
    return torch.from_numpy(w8a16.dequantize(quantized, scale))


_ROUNDINGS = {"none": lambda weight: weight, "W8A16": _w8a16}
