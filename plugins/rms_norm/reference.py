"""Torch reference of `rms_norm`."""

import torch


def evaluate(
    x: torch.Tensor, *, weight: torch.Tensor, hidden_size: int, epsilon: float
) -> torch.Tensor:
    """Return x / sqrt(mean(x**2) + epsilon) * weight, over [T, hidden_size]; float32 inside.

    Source: arXiv 1910.07467; the rounding before the product with `weight` is that of transformers'
    LlamaRMSNorm.
    """
    assert x.shape[-1] == hidden_size, x.shape
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return weight * normed.to(x.dtype)
