"""Torch reference of `gated_activation`."""

import torch

_ACTIVATIONS = {"silu": torch.nn.functional.silu}


def evaluate(x: torch.Tensor, *, intermediate_size: int, activation: str) -> torch.Tensor:
    """Return act(x[:, :I]) * x[:, I:], [T, I]. Source: arXiv 2002.05202 (SwiGLU)."""
    assert x.shape[-1] == 2 * intermediate_size, x.shape
    return _ACTIVATIONS[activation](x[:, :intermediate_size]) * x[:, intermediate_size:]
