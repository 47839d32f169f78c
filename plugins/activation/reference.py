"""Torch reference of `activation`."""

from collections.abc import Callable

import torch
from torch.nn.functional import gelu, relu, silu

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
    "relu": relu,
    "relu2": lambda x: relu(x).square(),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}
"""Sources: arXiv 1606.08415 (all gelus), 1702.03118 (silu), 2109.08668 (relu2)."""


def evaluate(x: torch.Tensor, *, columns: int, activation: str) -> torch.Tensor:
    """Return the activation of each element, [T, columns]."""
    assert x.shape[-1] == columns, x.shape
    return ACTIVATIONS[activation](x)
