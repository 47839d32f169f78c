"""Torch reference of `attention`: loops over sequences, materializes everything.

Legend: T tokens, N query heads, K KV heads, D head_size, H half the rotary columns, C context
length of a sequence.
"""

from typing import Any

import torch

from llmc.plugins.alibi import alibi_bias
from llmc.plugins.rope import rope_angles


def evaluate(
    qkv: torch.Tensor,
    *,
    kv_cache: torch.Tensor,
    positions: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    prompt_lens: torch.Tensor,
    layer: int,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    rope_style: str,
    rotary_dim: int,
    rotary_base: float,
    rotary_scaling: dict[str, Any] | None,
    max_position_embeddings: int,
    sliding_window: int | None,
    alibi: dict[str, Any] | None,
    softcap: float | None,
    scale: float,
    kv_quant: str,
    kv_cache_scaling_factor: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the attended values [T, N * D] and write the new keys and values.

    `kv_cache` is [num_layers, 2, num_blocks, tokens_per_block, K, D], keys first; its layer `layer`
    is modified. Softmax in float32. With `kv_quant` it holds what is left of keys and values once
    divided by the scaling factor and rounded, scaled back.
    """
    heads = qkv.reshape(qkv.shape[0], num_heads + 2 * num_kv_heads, head_size)
    q_TND, v_TKD = heads[:, :num_heads], heads[:, num_heads + num_kv_heads :]
    k_TKD = heads[:, num_heads : num_heads + num_kv_heads]
    at = positions.long()
    if rope_style != "none":
        prompts = prompt_lens.repeat_interleave(query_start.diff())
        angles = rope_angles(
            rotary_base=rotary_base,
            rotary_dim=rotary_dim,
            rotary_scaling=rotary_scaling,
            max_position_embeddings=max_position_embeddings,
            positions=positions.cpu().numpy(),
            lengths=torch.maximum(prompts, positions + 1).cpu().numpy(),
        )
        cos, sin = (torch.from_numpy(values).to(qkv)[:, None] for values in angles)
        q_TND, k_TKD = (_ROTATIONS[rope_style](x, cos, sin) for x in (q_TND, k_TKD))
    if kv_quant != "none":
        assert kv_cache_scaling_factor is not None
        k_TKD, v_TKD = (_round_kv(x, kv_cache_scaling_factor, kv_quant) for x in (k_TKD, v_TKD))
    keys, values = kv_cache[layer]
    out_TND = torch.empty_like(q_TND)
    for sequence, length in enumerate(context_lens.tolist()):
        rows = slice(int(query_start[sequence]), int(query_start[sequence + 1]))
        block, slot = _slots(block_tables[sequence], length, keys.shape[1])
        new = slice(length - (rows.stop - rows.start), length)
        keys[block[new], slot[new]] = k_TKD[rows]
        values[block[new], slot[new]] = v_TKD[rows]
        bias = None
        if alibi is not None:
            bias = torch.from_numpy(
                alibi_bias(alibi, num_heads, at[rows].cpu().numpy(), length, scale)
            ).to(at.device)
        out_TND[rows] = attend(
            q_TND[rows],
            keys[block, slot],
            values[block, slot],
            at[rows],
            scale=scale,
            softcap=softcap,
            bias=bias,
            sliding_window=sliding_window,
            sinks=sinks,
        )
    return out_TND.reshape(qkv.shape[0], num_heads * head_size)


def rotate_halves(
    x_TND: torch.Tensor, cos_T1H: torch.Tensor, sin_T1H: torch.Tensor
) -> torch.Tensor:
    """Turn columns i and i + H of each head together; columns past 2 * H pass. Source: GPT-NeoX."""
    half = cos_T1H.shape[-1]
    first, second = x_TND[..., :half], x_TND[..., half : 2 * half]
    turned = (first * cos_T1H - second * sin_T1H, second * cos_T1H + first * sin_T1H)
    return torch.cat((*turned, x_TND[..., 2 * half :]), dim=-1)


def rotate_pairs(x_TND: torch.Tensor, cos_T1H: torch.Tensor, sin_T1H: torch.Tensor) -> torch.Tensor:
    """Turn columns 2 i and 2 i + 1 of each head together; those past 2 * H pass. Source: GPT-J."""
    turning = x_TND[..., : 2 * cos_T1H.shape[-1]]
    first, second = turning[..., ::2], turning[..., 1::2]
    turned = (first * cos_T1H - second * sin_T1H, second * cos_T1H + first * sin_T1H)
    pairs = torch.stack(turned, dim=-1).reshape(turning.shape)
    return torch.cat((pairs, x_TND[..., turning.shape[-1] :]), dim=-1)


_ROTATIONS = {"neox": rotate_halves, "gptj": rotate_pairs}


def attend(
    q_TND: torch.Tensor,
    k_CKD: torch.Tensor,
    v_CKD: torch.Tensor,
    positions: torch.Tensor,
    *,
    scale: float,
    softcap: float | None,
    bias: torch.Tensor | None,
    sliding_window: int | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Return softmax(scores) @ v of one sequence; a query sees positions up to its own.

    `bias` is added to the scores [N, T, C], `sinks` [N] are logits of keys without values.
    Sources: arXiv 2408.00118 (softcap), openai/gpt-oss (sinks).
    """
    group = q_TND.shape[1] // k_CKD.shape[1]
    k_CND, v_CND = (x.repeat_interleave(group, dim=1) for x in (k_CKD, v_CKD))
    scores = torch.einsum("tnd,cnd->ntc", q_TND, k_CND).float() * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if bias is not None:
        scores = scores + bias
    distance = positions[:, None] - torch.arange(k_CKD.shape[0], device=positions.device)
    hidden = distance < 0
    if sliding_window is not None:
        hidden |= distance >= sliding_window
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        sink_N11 = sinks.float()[:, None, None].expand(-1, scores.shape[1], 1)
        scores = torch.cat((scores, sink_N11), dim=-1)
    weights = scores.softmax(dim=-1)[..., : k_CKD.shape[0]].to(q_TND.dtype)
    return torch.einsum("ntc,cnd->tnd", weights, v_CND)


def _round_kv(x: torch.Tensor, scale: torch.Tensor, kv_quant: str) -> torch.Tensor:
    steps = x * (1 / scale.to(x.dtype))
    if kv_quant == "INT8":
        return steps.clamp(-128, 127).round() * scale
    return steps.clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype) * scale


def _slots(
    block_table: torch.Tensor, length: int, tokens_per_block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return page and slot of positions 0 to length - 1."""
    position = torch.arange(length, device=block_table.device)
    return block_table.long()[position // tokens_per_block], position % tokens_per_block
