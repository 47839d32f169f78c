"""Torch reference of `embedding`."""

import torch


def evaluate(
    token_ids: torch.Tensor,
    *,
    weight: torch.Tensor,
    vocab_start: int,
    num_embeddings: int,
    hidden_size: int,
    scale: float,
) -> torch.Tensor:
    """Return scaled rows [T, hidden_size] of this rank's table; zeros for ids outside it."""
    assert weight.shape == (num_embeddings, hidden_size), weight.shape
    local = token_ids.long() - vocab_start
    here = (local >= 0) & (local < num_embeddings)
    return torch.where(here[:, None], weight[local.clamp(0, num_embeddings - 1)] * scale, 0.0)
