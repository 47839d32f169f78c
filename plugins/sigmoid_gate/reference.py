"""Torch reference of `sigmoid_gate`."""

import torch


def evaluate(x: torch.Tensor, gate: torch.Tensor, *, hidden_size: int) -> torch.Tensor:
    """Return x * sigmoid(gate), [T, hidden_size]."""
    assert x.shape[1] == hidden_size and gate.shape[1] == 1, (x.shape, gate.shape)
    return x * gate.sigmoid()
