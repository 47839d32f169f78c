"""Torch reference of `wide_qk_norm`."""

import torch


def evaluate(
    qkv: torch.Tensor,
    squares: torch.Tensor,
    *,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    total_heads: int,
    total_kv_heads: int,
    epsilon: float,
) -> torch.Tensor:
    """Return qkv with q and k divided by the root of their mean squares, times their weights.

    Source: the rounding before the product with the weight is that of transformers' Olmo2RMSNorm.
    """
    queries = num_heads * head_size
    q, k, v = qkv.tensor_split([queries, queries + num_kv_heads * head_size], dim=1)
    totals = torch.tensor([total_heads * head_size, total_kv_heads * head_size])
    factors = torch.rsqrt(squares / totals.to(squares.device) + epsilon)
    normed_q = (q_weight.float() * (q.float() * factors[:, :1])).to(qkv.dtype)
    normed_k = (k_weight.float() * (k.float() * factors[:, 1:])).to(qkv.dtype)
    return torch.cat([normed_q, normed_k, v], dim=1)
