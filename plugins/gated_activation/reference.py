"""Torch reference of `gated_activation`."""

import torch

from llmc.plugins.activation.reference import ACTIVATIONS


def evaluate(
    x: torch.Tensor, *, intermediate_size: int, activation: str, activated_half: int
) -> torch.Tensor:
    """Return the activated half of x [T, 2 I] times the other, [T, I]. Source: arXiv 2002.05202."""
    assert x.shape[-1] == 2 * intermediate_size and activated_half in (0, 1), x.shape
    halves = x.tensor_split(2, dim=-1)
    return ACTIVATIONS[activation](halves[activated_half]) * halves[1 - activated_half]
