"""Torch reference of `mla_qkv`."""

import torch


def evaluate(
    q: torch.Tensor,
    kv: torch.Tensor,
    rope: torch.Tensor,
    *,
    num_heads: int,
    nope_size: int,
    rope_size: int,
    value_size: int,
) -> torch.Tensor:
    """Return [q heads | k heads | v heads], each of nope_size + rope_size columns."""
    tokens, size = q.shape[0], nope_size + rope_size
    grouped = q.reshape(tokens, num_heads, size)
    q_still, q_moving = torch.split(grouped, [nope_size, rope_size], dim=2)
    k_still, values = torch.split(kv, [num_heads * nope_size, num_heads * value_size], dim=1)
    k_still = k_still.reshape(tokens, num_heads, nope_size)
    k_moving = rope[:, None].expand(tokens, num_heads, rope_size)
    values = values.reshape(tokens, num_heads, value_size)
    heads = (
        torch.cat([q_moving, q_still], dim=2),
        torch.cat([k_moving, k_still], dim=2),
        torch.nn.functional.pad(values, (0, size - value_size)),
    )
    return torch.cat(heads, dim=1).reshape(tokens, -1)
