"""TensorRT lowering of `attention`: one fused layer over a cache that is updated in place.

The fused layer has no factor of scores: queries are multiplied by it. A sliding window is an
additive mask. TensorRT composes the layer of small kernels for head sizes that no fused one takes.

Legend: B slots, S tokens, N query heads, K KV heads, D head_size, C max_seq_len.
"""

from typing import Any

from llmc.plugins.attention.tensorrt_composed import composed_attention
from llmc.plugins.attention.tensorrt_masks import additive_mask
from llmc.plugins.graph import OpCall
from llmc.plugins.rope import length_dependence, rope_tables, rope_unsupported
from llmc.plugins.tensorrt_lowering import Lowering, Tensor

FUSED_HEAD_SIZES = (40, 64, 72, 80, 96, 128, 256)
FUSED_DTYPES = ("float16", "bfloat16")
"""What TensorRT for RTX 1.7 has a fused kernel for, on each of its compute capabilities."""
FUSED_HEADS = 4
"""Fewest query heads of a rank that there surely is one for; for two the builder refuses it."""


def unsupported(call: OpCall, max_seq_len: int) -> list[str]:
    attrs: dict[str, Any] = call.attrs
    reasons = [
        f"{call.name}: {what}, which the tensorrt targets do not lower"
        for what, is_there in (
            ("ALiBi", attrs["alibi"] is not None),
            ("attention sinks", "sinks" in call.weights),
        )
        if is_there
    ]
    if attrs["rope_style"] == "none":
        return reasons
    scaling, positions = attrs["rotary_scaling"], attrs["max_position_embeddings"]
    reasons += rope_unsupported(rotary_dim=attrs["rotary_dim"], rotary_scaling=scaling)
    changes = None if reasons else length_dependence(scaling, positions)
    if changes is not None and max_seq_len > changes.original:
        reasons.append(
            f"rotary_scaling: angles beyond {changes.original} positions change with the length of"
            f" the sequence, and a plan has one table; build.max_seq_len at most {changes.original}"
        )
    return reasons


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
    q_BNSD = layers.scaled(q_BNSD, attrs["scale"])
    k_BKSD, v_BKSD = (_round_kv(lowering, part, call) for part in (k_BKSD, parts[2]))
    k_BKCD, v_BKCD = lowering.update_kv_cache(attrs["layer"], k_BKSD, v_BKSD)
    context = _attend(lowering, q_BNSD, k_BKCD, v_BKCD, attrs)
    lowering.set_value(
        call.outputs[0], layers.transpose(context, (0, 2, 1, 3), (0, 0, heads * size))
    )


def _rotate(lowering: Lowering, x_BNSD: Tensor, attrs: dict[str, Any]) -> Tensor:
    if attrs["rope_style"] == "none":
        return x_BNSD
    layers, trt_network = lowering.layers, lowering.layers.network
    keys = ("rotary_base", "rotary_dim", "rotary_scaling", "max_position_embeddings")
    rope = {key: attrs[key] for key in keys}

    def table(place: int) -> Tensor:
        tables = rope_tables(**rope, num_positions=lowering.max_seq_len)
        return layers.cast(layers.small(tables[place], "float32", "table"), lowering.dtype)

    cos = lowering.shared(f"rope.cos.{rope}", lambda: table(0))
    sin = lowering.shared(f"rope.sin.{rope}", lambda: table(1))
    layer = trt_network.add_rotary_embedding(
        x_BNSD, cos, sin, attrs["rope_style"] == "gptj", attrs["rotary_dim"]
    )
    layers.named(layer, "rotary").set_input(3, lowering.batch_input("positions"))
    return layers.output(layer, "rotary")


KV_NUMBERS = {"INT8": "int8", "FP8": "float8_e4m3fn"}


def _round_kv(lowering: Lowering, x_BKSD: Tensor, call: OpCall) -> Tensor:
    """Leave what a quantized cache would; the cache itself stays in the type of activations."""
    number = KV_NUMBERS.get(str(call.attrs["kv_quant"]))
    if number is None:
        return x_BKSD
    names, layers = call.weights["kv_cache_scaling_factor"], lowering.layers
    scale = lowering.weight(names[0], (), "float32", lambda: lowering.read(names).reshape(()))
    return layers.dequantize(layers.quantize(x_BKSD, scale, number), scale, lowering.dtype)


def _attend(
    lowering: Lowering, q_BNSD: Tensor, k_BKCD: Tensor, v_BKCD: Tensor, attrs: dict[str, Any]
) -> Tensor:
    layers, trt = lowering.layers, lowering.layers.trt
    if attrs["softcap"] is not None:
        lowering.note("scores have a soft cap: attention is not one fused kernel, but small layers")
        window, cap = attrs["sliding_window"], attrs["softcap"]
        return composed_attention(lowering, q_BNSD, k_BKCD, v_BKCD, softcap=cap, window=window)
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
    heads, head_size = attrs["num_heads"], attrs["head_size"]
    layer.decomposable = not _has_fused(heads, head_size)
    if layer.decomposable:
        lowering.note(
            "attention may be composed of small kernels: no fused one surely takes"
            f" {heads} heads of {head_size}"
        )
    return layer.get_output(0)


def _has_fused(num_heads: int, head_size: int) -> bool:
    return num_heads >= FUSED_HEADS and head_size in FUSED_HEAD_SIZES


def is_fused(call: OpCall, dtype: str) -> bool:
    """Say whether a fused kernel does this attention."""
    attrs: dict[str, Any] = call.attrs
    fits = dtype in FUSED_DTYPES and _has_fused(attrs["num_heads"], attrs["head_size"])
    return fits and attrs["softcap"] is None
