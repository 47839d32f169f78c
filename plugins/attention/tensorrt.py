"""TensorRT lowering of `attention`: one fused layer over a cache that is updated in place.

The fused layer has no factor of scores: queries are multiplied by it. A sliding window and ALiBi
are additive masks. A sink is a key of zeros, whose score is what the mask says: it is written into
the cache behind a slot's last token, where the next token takes its place.

Legend: B slots, S tokens, N query heads, K KV heads, H = N + 2 K, D head_size, C positions of the
KV cache.
"""

from typing import Any

from llmc.plugins.attention.tensorrt_composed import composed_attention
from llmc.plugins.attention.tensorrt_fp8 import round_inputs, round_probabilities
from llmc.plugins.attention.tensorrt_masks import additive_mask, causal_mask
from llmc.plugins.attention.tensorrt_rotary import rotate
from llmc.plugins.graph import OpCall
from llmc.plugins.rope import rope_unsupported
from llmc.plugins.tensorrt_lowering import Lowering, Tensor

FUSED_DTYPES = ("float16", "bfloat16")
LARGEST_FUSED_HEAD = 256
"""Of head sizes that are multiples of 8, TensorRT for RTX 1.7 has a fused kernel up to here."""
FUSED_HEADS = 4
"""Fewest query heads that it has one for, however many KV heads there are."""
SINK_POSITIONS = 64
"""Positions of a cache beyond max_seq_len, for the sink of a full slot: one is needed; this many
leave the rows of slots aligned as they were."""


def unsupported(call: OpCall, max_seq_len: int) -> list[str]:
    attrs: dict[str, Any] = call.attrs
    if attrs["rope_style"] == "none":
        return []
    return rope_unsupported(rotary_dim=attrs["rotary_dim"], rotary_scaling=attrs["rotary_scaling"])


def lower(call: OpCall, lowering: Lowering) -> None:
    attrs: dict[str, Any] = call.attrs
    layers, heads, size = lowering.layers, attrs["num_heads"], attrs["head_size"]
    qkv = lowering.value(call.inputs[0])
    counts = (heads, attrs["num_kv_heads"], attrs["num_kv_heads"])
    # Cut behind the transposition: of three equal cuts before it the builder makes a batch of three
    # products, and for that dequantizes weights of 8 bits first.
    qkv_BHSD = layers.reshape(qkv, (0, 0, sum(counts), size), transpose=(0, 2, 1, 3))
    parts, start = [], 0
    for count in counts:
        parts.append(layers.cut(qkv_BHSD, 1, start, count))
        start += count
    q_BNSD, k_BKSD = (rotate(lowering, part, attrs) for part in parts[:2])
    q_BNSD = layers.scaled(q_BNSD, attrs["scale"])
    k_BKSD, v_BKSD = (_round_kv(lowering, part, call) for part in (k_BKSD, parts[2]))
    spare = 0
    if "sinks" in call.weights:
        spare = SINK_POSITIONS
        k_BKSD, v_BKSD = (layers.padded(x, 2, 1) for x in (k_BKSD, v_BKSD))
    k_BKCD, v_BKCD = lowering.update_kv_cache(attrs["layer"], k_BKSD, v_BKSD, spare=spare)
    context = _attend(lowering, q_BNSD, k_BKCD, v_BKCD, call)
    lowering.set_value(
        call.outputs[0], layers.transpose(context, (0, 2, 1, 3), (0, 0, heads * size))
    )


KV_NUMBERS = {"INT8": "int8", "FP8": "float8_e4m3fn"}


def _round_kv(lowering: Lowering, x_BKSD: Tensor, call: OpCall) -> Tensor:
    """Leave what a quantized cache would; the cache itself stays in the type of activations."""
    number = KV_NUMBERS.get(str(call.attrs["kv_quant"]))
    if number is None:
        return x_BKSD
    layers, scale = lowering.layers, _kv_scale(lowering, call)
    return layers.dequantize(layers.quantize(x_BKSD, scale, number), scale, lowering.dtype)


def _kv_scale(lowering: Lowering, call: OpCall) -> Tensor:
    names = call.weights["kv_cache_scaling_factor"]
    return lowering.weight(names[0], (), "float32", lambda: lowering.read(names).reshape(()))


def _attend(
    lowering: Lowering, q_BNSD: Tensor, k_BKCD: Tensor, v_BKCD: Tensor, call: OpCall
) -> Tensor:
    layers, trt, attrs = lowering.layers, lowering.layers.trt, call.attrs
    num_positions, cap = k_BKCD.shape[2], attrs["softcap"]
    mask = additive_mask(lowering, call, num_positions)
    if cap is not None:
        lowering.note("scores have a soft cap: attention is not one fused kernel, but small layers")
        assert isinstance(cap, float)
        mask = causal_mask(lowering, attrs, num_positions) if mask is None else mask
        return composed_attention(lowering, q_BNSD, k_BKCD, v_BKCD, mask, cap)
    heads, times = q_BNSD.shape[1], _times(q_BNSD.shape[1])
    q_BNSD = _repeated(lowering, q_BNSD, times)
    in_fp8 = is_fp8(call, lowering.dtype, embeds=lowering.embeds)
    if in_fp8:
        scale = _kv_scale(lowering, call)
        q_BNSD, k_BKCD, v_BKCD = round_inputs(lowering, q_BNSD, k_BKCD, v_BKCD, scale)
    kind = trt.CausalMaskKind.LOWER_RIGHT if mask is None else trt.CausalMaskKind.NONE
    layer = layers.named(
        layers.network.add_attention_v2(
            *(q_BNSD, k_BKCD, v_BKCD),
            *(trt.AttentionNormalizationOp.SOFTMAX, kind),
        ),
        "attention",
    )
    if in_fp8:
        round_probabilities(lowering, layer)
    # What lies in a cache beyond a slot's length may be any number; a mask only adds to it.
    layer.key_value_lengths = _lengths(lowering, call)
    if mask is not None:
        layer.mask = _repeated(lowering, mask, times) if mask.shape[1] == heads else mask
    layer.decomposable = not _has_fused(q_BNSD.shape[3])
    if layer.decomposable:
        lowering.note(
            "attention may be composed of small kernels: no fused one surely takes heads of"
            f" {q_BNSD.shape[3]}"
        )
    return _first_of_each(lowering, layer.get_output(0), times)


def _lengths(lowering: Lowering, call: OpCall) -> Tensor:
    """Return how many keys of each slot there are, int32 [B]."""
    layers, lengths = lowering.layers, lowering.batch_input("kv_lens")
    if "sinks" not in call.weights:
        return lengths
    return lowering.shared(
        "kv_lens_with_sink", lambda: layers.binary("SUM", lengths, layers.like(1, lengths))
    )


def _times(num_heads: int) -> int:
    """Return how often each query head is there, so that there are enough for a fused kernel."""
    return -(-FUSED_HEADS // num_heads)


def _repeated(lowering: Lowering, x_BNSD: Tensor, times: int) -> Tensor:
    """Return each head `times` times, one after the other: they read the same KV head."""
    if times == 1:
        return x_BNSD
    layers, (_, heads, _, size) = lowering.layers, x_BNSD.shape
    one = layers.reshape(x_BNSD, (0, heads, 1, -1, size))
    return layers.reshape(layers.concatenate([one] * times, 2), (0, heads * times, -1, size))


def _first_of_each(lowering: Lowering, x_BNSD: Tensor, times: int) -> Tensor:
    """Return every `times`-th head."""
    if times == 1:
        return x_BNSD
    layers, (_, heads, _, size) = lowering.layers, x_BNSD.shape
    grouped = layers.reshape(x_BNSD, (0, heads // times, times, -1, size))
    return layers.gather(grouped, layers.small(0, "int32"), axis=2)


def _has_fused(head_size: int) -> bool:
    return head_size % 8 == 0 and head_size <= LARGEST_FUSED_HEAD


def is_fused(call: OpCall, dtype: str) -> bool:
    """Say whether a fused kernel does this attention."""
    attrs: dict[str, Any] = call.attrs
    return dtype in FUSED_DTYPES and _has_fused(attrs["head_size"]) and attrs["softcap"] is None


def is_fp8(call: OpCall, dtype: str, *, embeds: bool) -> bool:
    """Say whether a fused kernel does this attention in FP8.

    Not without weights: the builder refuses it with a placeholder for the cache's scale.
    """
    return embeds and call.attrs["kv_quant"] == "FP8" and is_fused(call, dtype)
