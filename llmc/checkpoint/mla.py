"""The tensors of multi-head latent attention but its output product.

Source: names and order of rows as in NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/deepseek_v2/
convert.py, which gives q_b_proj and kv_b_proj no ".weight" and adds fused_q_proj, the product of
q_b_proj with the k part of kv_b_proj, that is not written here. It quantizes none of them.
"""

from collections.abc import Iterator

from llmc.arch import ModelArch
from llmc.checkpoint.split import Segment, TensorSpec


def mla_specs(arch: ModelArch, attention: str, layer: int) -> Iterator[TensorSpec]:
    """Yield what computes q, k and v; nothing where attention is not latent.

    Rows of fused_a are those of q's latent, of that of k and v, and the rotating columns of k; rows
    of kv_b_proj are k of every head, then v of every head.
    """
    mla, hidden, heads = arch.mla, arch.hidden_size, arch.num_attention_heads
    if mla is None:
        return
    latents = [mla.kv_lora_rank + mla.qk_rope_head_dim]
    if mla.q_lora_rank is not None:
        latents.insert(0, mla.q_lora_rank)
        yield _norm(f"{attention}.q_a_layernorm", mla.q_lora_rank, layer)
    yield _norm(f"{attention}.kv_a_layernorm", mla.kv_lora_rank, layer)
    yield TensorSpec(
        name=f"{attention}.fused_a.weight",
        shape=(sum(latents), hidden),
        segments=tuple(Segment(count=count) for count in latents),
        layer=layer,
    )
    for name, sizes, columns in (
        ("q_b_proj", (arch.head_size,), mla.q_lora_rank or hidden),
        ("kv_b_proj", (mla.qk_nope_head_dim, mla.v_head_dim), mla.kv_lora_rank),
    ):
        yield TensorSpec(
            name=f"{attention}.{name}.weight",
            shape=(heads * sum(sizes), columns),
            axis=0,
            segments=tuple(Segment(count=heads, size=size) for size in sizes),
            layer=layer,
        )


def _norm(name: str, size: int, layer: int) -> TensorSpec:
    return TensorSpec(name=f"{name}.weight", shape=(size,), layer=layer)
