"""Attention of small layers, for what no fused kernel knows: a soft cap of scores.

It reads keys and values of every position, and keeps all scores in memory.

Legend: B slots, S tokens, K KV heads, G query heads of each, D head_size, C max_seq_len.
"""

from llmc.plugins.attention.tensorrt_masks import window_mask
from llmc.plugins.tensorrt_lowering import Lowering, Tensor


def composed_attention(
    lowering: Lowering,
    q_BNSD: Tensor,
    k_BKCD: Tensor,
    v_BKCD: Tensor,
    *,
    softcap: float,
    window: int | None,
) -> Tensor:
    """Return the context [B, N, S, D]; scores are capped and summed in float32."""
    layers, dtype = lowering.layers, lowering.dtype
    _, heads, _, size = q_BNSD.shape
    kv_heads = k_BKCD.shape[1]
    # [B, N, S, D] → [B, K, G, S, D]; keys and values get an axis of 1 that is stretched.
    grouped = (0, kv_heads, heads // kv_heads, -1, size)
    q_BKGSD = layers.reshape(q_BNSD, grouped)
    k_BK1CD, v_BK1CD = (
        layers.reshape(x, (0, kv_heads, 1, lowering.max_seq_len, size)) for x in (k_BKCD, v_BKCD)
    )
    scores = layers.cast(layers.matmul(q_BKGSD, k_BK1CD, transpose_b=True), "float32")
    capped = layers.soft_capped(scores, softcap)
    mask = layers.cast(window_mask(lowering, window), "float32")
    # [B, 1, S, C] → [B, 1, 1, S, C]
    visible = layers.reshape(mask, (0, 1, 1, -1, lowering.max_seq_len))
    weights = layers.softmax(layers.binary("SUM", capped, visible), 4)
    context = layers.matmul(layers.cast(weights, dtype), v_BK1CD)
    return layers.reshape(context, (0, heads, -1, size))
