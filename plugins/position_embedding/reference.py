"""Torch reference of `position_embedding`."""

import torch


def evaluate(
    hidden: torch.Tensor,
    *,
    weight: torch.Tensor,
    positions: torch.Tensor,
    hidden_size: int,
    num_positions: int,
) -> torch.Tensor:
    """Return hidden [T, hidden_size] plus the rows of the table at `positions`."""
    assert weight.shape == (num_positions, hidden_size), weight.shape
    return hidden + weight[positions.long()]
