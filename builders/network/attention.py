"""The attention block: qkv and what is done to it, attention over the cache, the output product."""

from llmc.builders.network.writer import Writer
from llmc.plugins.graph import Attr

ROPE_STYLES = {
    "rope_gpt_neox": "neox",
    "rope_gptj": "gptj",
    "long_rope": "neox",
    "yarn": "neox",
    "learned_absolute": "none",
    "alibi": "none",
    "alibi_with_scale": "none",
}
"""TensorRT-LLM's position_embedding_type → how the heads rotate."""


def attention(writer: Writer, local: int, value: str) -> str:
    """Write the attention of a layer; `local` counts inside the stage, as tensor names do."""
    arch, module = writer.arch, f"transformer.layers.{local}.attention"
    heads, kv_heads = writer.heads
    columns = (heads + 2 * kv_heads) * arch.head_size
    qkv = writer.linear(
        (f"{module}.qkv",),
        value,
        in_features=arch.hidden_size,
        out_features=columns,
        bias=arch.attn_bias,
    )
    if arch.clip_qkv is not None:
        attrs: dict[str, Attr] = {"columns": columns, "limit": arch.clip_qkv}
        qkv = writer.call("clamp", f"{module}.clip_qkv", (qkv,), attrs)
    if arch.qk_norm is not None:
        qkv = _qk_norm(writer, module, qkv)
    weights = {}
    if writer.config.quantization.kv_cache_quant_algo is not None:
        weights["kv_cache_scaling_factor"] = (f"{module}.kv_cache_scaling_factor",)
    if arch.attention_sinks:
        weights["sinks"] = (f"{module}.sinks",)
    attrs = attention_attrs(writer, local)
    context = writer.call("attention", module, (qkv,), attrs, weights)
    return writer.row_linear(f"{module}.dense", context, heads * arch.head_size, arch.dense_bias)


def attention_attrs(writer: Writer, local: int) -> dict[str, Attr]:
    """Return the attributes of the op `attention` in a layer."""
    arch, layer = writer.arch, writer.global_layer(local)
    heads, kv_heads = writer.heads
    kind, rope = arch.position_embedding_type, arch.rope(layer)
    style = "none" if rope == "none" else ROPE_STYLES[kind]
    base, scaling = arch.rotary_base, arch.rotary_scaling
    if rope == "local":
        assert arch.rotary_base_local is not None, arch.architecture
        base, scaling = arch.rotary_base_local, None
    alibi: dict[str, Attr] = {
        "first_head": writer.mapping.tp_rank * heads,
        "total_heads": arch.num_attention_heads,
        "scaled": kind == "alibi_with_scale",
    }
    scale = arch.head_size**-0.5 if arch.attention_scale is None else arch.attention_scale
    return {
        "layer": local,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_size": arch.head_size,
        "rope_style": style,
        "rotary_dim": 0 if style == "none" else arch.rotary_embedding_dim,
        "rotary_base": float(base),
        "rotary_scaling": None if style == "none" else scaling,
        "max_position_embeddings": arch.max_position_embeddings,
        "sliding_window": arch.window(layer),
        "alibi": alibi if kind.startswith("alibi") else None,
        "softcap": arch.attn_logit_softcapping,
        "kv_quant": writer.config.quantization.kv_cache_quant_algo or "none",
        "scale": float(scale),
    }


def _qk_norm(writer: Writer, module: str, qkv: str) -> str:
    """Norm q and k; over all heads together, the group's sums of squares are added up first."""
    arch = writer.arch
    heads, kv_heads = writer.heads
    shape: dict[str, Attr] = {
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_size": arch.head_size,
    }
    attrs = shape | {"epsilon": float(arch.norm_epsilon)}
    weights = {f"{name}_weight": (f"{module}.{name}_layernorm.weight",) for name in ("q", "k")}
    name = f"{module}.qk_norm"
    if arch.qk_norm != "full":
        attrs |= {"kind": arch.norm_type, "per_head": arch.qk_norm == "per_head"}
        return writer.call("head_norm", name, (qkv,), attrs, weights)
    squares = writer.call("qk_squares", f"{name}.squares", (qkv,), shape)
    squares = writer.allreduce(f"{name}.allreduce", squares, 2)
    attrs |= {
        "total_heads": arch.num_attention_heads,
        "total_kv_heads": arch.num_key_value_heads,
    }
    return writer.call("wide_qk_norm", name, (qkv, squares), attrs, weights)
