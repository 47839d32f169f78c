"""Torch reference of `qk_squares`."""

import torch


def evaluate(
    qkv: torch.Tensor, *, num_heads: int, num_kv_heads: int, head_size: int
) -> torch.Tensor:
    """Return [T, 2] float32: the sum of squares of this rank's q columns, and of its k columns."""
    queries = num_heads * head_size
    q, k, _ = qkv.float().tensor_split([queries, queries + num_kv_heads * head_size], dim=1)
    return torch.stack([q.square().sum(1), k.square().sum(1)], dim=1)
