"""Attention of small layers, for what no fused kernel knows: a soft cap of scores.

It reads keys and values of every position, and keeps all scores in memory.

Legend: B slots, S tokens, K KV heads, G query heads of each, D head_size, C max_seq_len.
"""

from llmc.plugins.tensorrt_lowering import Lowering, Tensor


def composed_attention(
    lowering: Lowering,
    q_BNSD: Tensor,
    k_BKCD: Tensor,
    v_BKCD: Tensor,
    mask: Tensor,
    softcap: float,
) -> Tensor:
    """Return the context [B, N, S, D]; scores are capped and summed in float32.

    `mask` [B, 1 or N, S, C] is added to the scores.
    """
    layers, dtype = lowering.layers, lowering.dtype
    _, heads, _, size = q_BNSD.shape
    _, kv_heads, num_positions, _ = k_BKCD.shape
    groups = heads // kv_heads
    # [B, N, S, D] → [B, K, G, S, D]; keys and values get an axis of 1 that is stretched.
    q_BKGSD = layers.reshape(q_BNSD, (0, kv_heads, groups, -1, size))
    k_BK1CD, v_BK1CD = (
        layers.reshape(x, (0, kv_heads, 1, num_positions, size)) for x in (k_BKCD, v_BKCD)
    )
    scores = layers.cast(layers.matmul(q_BKGSD, k_BK1CD, transpose_b=True), "float32")
    capped = layers.soft_capped(scores, softcap)
    # [B, N, S, C] → [B, K, G, S, C], or one of all heads → [B, 1, 1, S, C]
    each = (kv_heads, groups) if mask.shape[1] == heads else (1, 1)
    bias = layers.reshape(layers.cast(mask, "float32"), (0, *each, -1, num_positions))
    weights = layers.softmax(layers.binary("SUM", capped, bias), 4)
    context = layers.matmul(layers.cast(weights, dtype), v_BK1CD)
    return layers.reshape(context, (0, heads, -1, size))
