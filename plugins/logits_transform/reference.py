"""Torch reference of `logits_transform`."""

import torch


def evaluate(x: torch.Tensor, *, columns: int, scale: float, softcap: float | None) -> torch.Tensor:
    """Return scaled, then soft-capped logits [L, columns]. Source: arXiv 2408.00118 (the cap)."""
    assert x.shape[-1] == columns, x.shape
    scaled = x * scale
    return scaled if softcap is None else torch.tanh(scaled / softcap) * softcap
