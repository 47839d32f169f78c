"""Torch reference of `layer_norm`."""

import torch


def evaluate(
    x: torch.Tensor,
    *,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    hidden_size: int,
    epsilon: float,
) -> torch.Tensor:
    """Return (x - mean) / sqrt(variance + epsilon) * weight + bias, over [T, hidden_size].

    Source: arXiv 1607.06450.
    """
    return torch.nn.functional.layer_norm(x, (hidden_size,), weight, bias, epsilon)
