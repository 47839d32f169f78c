"""Multi-head latent attention, expanded to plain attention of as many KV heads as heads.

The cache holds whole keys and values, not their latent. Source: DeepSeek-V2, arXiv 2405.04434.
"""

from llmc.builders.network.attention import attention_attrs
from llmc.builders.network.writer import Writer
from llmc.plugins.graph import Attr

_EPSILON = 1e-6
"""Of the norms of the latents, whatever the model's is; huggingface/transformers 5.24
models/deepseek_v2 (DeepseekV2RMSNorm's default)."""


def latent_attention(writer: Writer, local: int, value: str) -> str:
    """Write the attention of a layer; `local` counts inside the stage, as tensor names do."""
    arch, module = writer.arch, f"transformer.layers.{local}.attention"
    mla = arch.mla
    assert mla is not None, arch.architecture
    (heads, _), hidden = writer.heads, arch.hidden_size
    q_rank, kv_rank, rope = mla.q_lora_rank or 0, mla.kv_lora_rank, mla.qk_rope_head_dim
    width = q_rank + kv_rank + rope
    latent = writer.linear(
        (f"{module}.fused_a",), value, in_features=hidden, out_features=width, bias=False
    )

    def expanded(name: str, start: int, rank: int, columns: int) -> str:
        """Norm a part of the latent and multiply it with `name`_b_proj."""
        part = _take(writer, f"{module}.{name}_a", latent, (1, width, start, rank))
        attrs: dict[str, Attr] = {"hidden_size": rank, "epsilon": _EPSILON}
        norm = f"{module}.{name}_a_layernorm"
        normed = writer.call("rms_norm", norm, (part,), attrs, {"weight": (f"{norm}.weight",)})
        return _linear(writer, f"{module}.{name}_b_proj", normed, rank, columns)

    if q_rank:
        q = expanded("q", 0, q_rank, heads * arch.head_size)
    else:
        q = _linear(writer, f"{module}.q_b_proj", value, hidden, heads * arch.head_size)
    kv = expanded("kv", q_rank, kv_rank, heads * (mla.qk_nope_head_dim + mla.v_head_dim))
    shared = _take(writer, f"{module}.k_rope", latent, (1, width, q_rank + kv_rank, rope))
    sizes: dict[str, Attr] = {
        "num_heads": heads,
        "nope_size": mla.qk_nope_head_dim,
        "rope_size": rope,
        "value_size": mla.v_head_dim,
    }
    qkv = writer.call("mla_qkv", f"{module}.qkv", (q, kv, shared), sizes)
    weights = {}
    if writer.config.quantization.kv_cache_quant_algo is not None:
        weights["kv_cache_scaling_factor"] = (f"{module}.kv_cache_scaling_factor",)
    context = writer.call("attention", module, (qkv,), attention_attrs(writer, local), weights)
    # Values were filled up with zeros to the size of keys.
    groups = (heads, arch.head_size, 0, mla.v_head_dim)
    context = _take(writer, f"{module}.context", context, groups)
    return writer.row_linear(f"{module}.dense", context, heads * mla.v_head_dim, arch.dense_bias)


def _linear(writer: Writer, module: str, value: str, rows: int, columns: int) -> str:
    return writer.linear((module,), value, in_features=rows, out_features=columns, bias=False)


def _take(writer: Writer, name: str, value: str, groups: tuple[int, int, int, int]) -> str:
    """Take columns of groups: how many, of what size, from which on, and how many of each."""
    keys = ("groups", "group_size", "start", "count")
    attrs = dict[str, Attr](zip(keys, groups, strict=True))
    return writer.call("take_columns", name, (value,), attrs)
