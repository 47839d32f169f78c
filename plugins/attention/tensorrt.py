"""TensorRT lowering of `attention`: one fused layer over a cache that is updated in place.

The fused layer has no factor and no cap of scores. Queries are multiplied by the factor; a cap is
composed of small layers (plugins/attention/tensorrt_composed.py), and so are types and head sizes
that no fused kernel takes. A sliding window and ALiBi are an additive mask.

Legend: B slots, S tokens, N query heads, K KV heads, D head_size, C max_seq_len.
"""

from typing import Any

from llmc.plugins.attention.tensorrt_masks import additive_mask
from llmc.plugins.graph import OpCall
from llmc.plugins.rope import rope_tables
from llmc.plugins.tensorrt_lowering import Lowering, Tensor

FUSED_HEAD_SIZES = (40, 64, 72, 80, 96, 128, 256)
FUSED_DTYPES = ("float16", "bfloat16")
"""What TensorRT for RTX 1.7 has a fused kernel for, on each of its compute capabilities."""


def unsupported(call: OpCall) -> list[str]:
    return []


def lower(call: OpCall, lowering: Lowering) -> None:
    attrs: dict[str, Any] = call.attrs
    layers, heads, size = lowering.layers, attrs["num_heads"], attrs["head_size"]
    qkv = lowering.value(call.inputs[0])
    counts = (heads, attrs["num_kv_heads"], attrs["num_kv_heads"])
    parts, start = [], 0
    for count in counts:
        part = layers.columns(qkv, start * size, count * size)
        # [B, S, N * D] → [B, N, S, D]
        parts.append(layers.reshape(part, (0, 0, count, size), transpose=(0, 2, 1, 3)))
        start += count
    q_BNSD, k_BKSD = (_rotate(lowering, part, attrs) for part in parts[:2])
    q_BNSD = _scale(lowering, q_BNSD, attrs["scale"])
    k_BKCD, v_BKCD = lowering.update_kv_cache(attrs["layer"], k_BKSD, parts[2])
    context = _attend(lowering, q_BNSD, k_BKCD, v_BKCD, attrs)
    lowering.set_value(
        call.outputs[0], layers.transpose(context, (0, 2, 1, 3), (0, 0, heads * size))
    )


def _rotate(lowering: Lowering, x_BNSD: Tensor, attrs: dict[str, Any]) -> Tensor:
    layers, trt_network = lowering.layers, lowering.layers.network
    keys = ("rotary_base", "rotary_dim", "rotary_scaling", "max_position_embeddings")
    rope = {key: attrs[key] for key in keys}

    def table(place: int) -> Tensor:
        tables = rope_tables(**rope, num_positions=lowering.max_seq_len)
        return layers.cast(layers.small(tables[place], "float32", "table"), lowering.dtype)

    cos = lowering.shared(f"rope.cos.{rope}", lambda: table(0))
    sin = lowering.shared(f"rope.sin.{rope}", lambda: table(1))
    layer = trt_network.add_rotary_embedding(x_BNSD, cos, sin, False, attrs["rotary_dim"])
    layers.named(layer, "rotary").set_input(3, lowering.batch_input("positions"))
    return layers.output(layer, "rotary")


def _scale(lowering: Lowering, q_BNSD: Tensor, scale: float) -> Tensor:
    """Multiply in float32: the type of q would round the factor, all queries alike."""
    layers = lowering.layers
    wide = layers.cast(q_BNSD, "float32")
    return layers.cast(layers.binary("PROD", wide, layers.like(scale, wide)), lowering.dtype)


def _attend(
    lowering: Lowering, q_BNSD: Tensor, k_BKCD: Tensor, v_BKCD: Tensor, attrs: dict[str, Any]
) -> Tensor:
    layers, trt = lowering.layers, lowering.layers.trt
    mask = additive_mask(lowering, attrs)
    kind = trt.CausalMaskKind.LOWER_RIGHT if mask is None else trt.CausalMaskKind.NONE
    layer = layers.named(
        layers.network.add_attention_v2(
            q_BNSD, k_BKCD, v_BKCD, trt.AttentionNormalizationOp.SOFTMAX, kind
        ),
        "attention",
    )
    if mask is None:
        # Rows beyond a slot's length are neither zero nor masked by anything else.
        layer.key_value_lengths = lowering.batch_input("kv_lens")
    else:
        layer.mask = mask
    layer.decomposable = not is_fused(lowering.dtype, attrs["head_size"])
    return layer.get_output(0)


def is_fused(dtype: str, head_size: int) -> bool:
    """Say whether a fused kernel takes such heads."""
    return dtype in FUSED_DTYPES and head_size in FUSED_HEAD_SIZES
