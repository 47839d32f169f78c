"""Torch reference of `recv`: what one side has is what the other gets."""

import torch


def evaluate(x: torch.Tensor, *, rows: str, num_columns: int, peer: int) -> torch.Tensor:
    """Return `x` [rows, num_columns] as it stands at the receiver."""
    assert x.shape[-1] == num_columns, x.shape
    return x.clone()
