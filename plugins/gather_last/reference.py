"""Torch reference of `gather_last`."""

import torch


def evaluate(hidden: torch.Tensor, *, logits_rows: torch.Tensor, hidden_size: int) -> torch.Tensor:
    """Return rows `logits_rows` of `hidden`, [L, hidden_size]."""
    assert hidden.shape[-1] == hidden_size, hidden.shape
    return hidden[logits_rows.long()]
