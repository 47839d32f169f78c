"""Torch reference of `head_norm`."""

import torch


def evaluate(
    qkv: torch.Tensor,
    *,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    kind: str,
    epsilon: float,
    per_head: bool,
) -> torch.Tensor:
    """Return qkv with every q and k head normalized over its columns; float32 inside."""
    heads = qkv.reshape(qkv.shape[0], num_heads + 2 * num_kv_heads, head_size)
    q, k, v = heads.tensor_split([num_heads, num_heads + num_kv_heads], dim=1)
    assert q_weight.shape == ((num_heads, head_size) if per_head else (head_size,)), q_weight.shape
    normed = [_NORMS[kind](x, weight, epsilon) for x, weight in ((q, q_weight), (k, k_weight))]
    return torch.cat([*normed, v], dim=1).reshape(qkv.shape)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return weight * normed.to(x.dtype)


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    wide = x.float()
    variance, mean = torch.var_mean(wide, -1, unbiased=False, keepdim=True)
    return (weight.float() * (wide - mean) * torch.rsqrt(variance + epsilon)).to(x.dtype)


_NORMS = {"rms_norm": _rms_norm, "layer_norm": _layer_norm}
