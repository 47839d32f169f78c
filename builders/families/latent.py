"""Latent attention as DeepSeek-V2 and V3 state it: settings and tensors that both have.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/deepseek_v2/{config,convert}.py, whose
checkpoints also hold fused_q_proj (llmc.checkpoint.mla); huggingface/transformers 5.24
models/deepseek_v2.
"""

from math import log
from typing import Any

from llmc.arch import MlaArch, ModelArch
from llmc.builders.families.rules import Ranges, fuse, rename, reorder
from llmc.builders.families.sizes import Fields, read_activation, read_sizes
from llmc.builders.hf.config import HfConfig
from llmc.builders.hf.rope import read_rope

_TRAINING = ("aux_loss_alpha", "router_aux_loss_coef", "seq_aux", "ep_size")


def read_fields(config: HfConfig) -> Fields:
    """Return the fields that V2 and V3 have in common."""
    mla = MlaArch(
        q_lora_rank=config.maybe(int, "q_lora_rank"),
        kv_lora_rank=config.count("kv_lora_rank"),
        qk_nope_head_dim=config.count("qk_nope_head_dim"),
        qk_rope_head_dim=config.count("qk_rope_head_dim"),
        v_head_dim=config.count("v_head_dim"),
    )
    config.raw("head_dim")  # transformers: that of the rotating columns
    sizes = read_sizes(config, head_dim="qk_head_dim")
    head_size = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    if mla.v_head_dim > head_size:
        wanted = f"at most qk_nope_head_dim + qk_rope_head_dim {head_size}"
        config.refuse("v_head_dim", mla.v_head_dim, wanted)
    config.expect("num_key_value_heads", sizes["num_attention_heads"])
    config.expect("attention_bias", False)
    for key in _TRAINING:
        config.raw(key)
    rope = read_rope(config, mla.qk_rope_head_dim).fields()
    return (
        sizes
        | read_activation(config)
        | rope
        | {
            "mla": mla,
            "head_size": head_size,
            "rotary_embedding_dim": mla.qk_rope_head_dim,
            "attention_scale": head_size**-0.5 * _mscale(rope.get("rotary_scaling")) ** 2,
            "norm_epsilon": config.optional(float, "rms_norm_eps", 1e-6),
            "tie_word_embeddings": config.optional(bool, "tie_word_embeddings", False),
            "position_embedding_type": "rope_gptj",
        }
    )


def _mscale(scaling: dict[str, Any] | None) -> float:
    """Return what yarn's mscale_all_dim multiplies q and k with."""
    factor, weight = (float((scaling or {}).get(key) or 0) for key in ("factor", "mscale_all_dim"))
    return 0.1 * weight * log(factor) + 1.0 if factor > 1 else 1.0


def keys_then_values(arch: ModelArch) -> Ranges:
    """Ranges of k of every head, then v, where the rows of each head are [k, v]."""
    assert arch.mla is not None, arch.architecture
    keys, values = arch.mla.qk_nope_head_dim, arch.mla.v_head_dim
    starts = [head * (keys + values) for head in range(arch.num_attention_heads)]
    yield from ((start, start + keys) for start in starts)
    yield from ((start + keys, start + keys + values) for start in starts)


def has_low_rank_q(arch: ModelArch) -> bool:
    """Say whether q comes from a latent vector of its own, and not from the hidden state."""
    assert arch.mla is not None, arch.architecture
    return bool(arch.mla.q_lora_rank)


ATTENTION_RULES = (
    fuse("attention.fused_a", "self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"),
    rename("attention.fused_a", "self_attn.kv_a_proj_with_mqa"),
    rename("attention.q_a_layernorm", "self_attn.q_a_layernorm"),
    rename("attention.kv_a_layernorm", "self_attn.kv_a_layernorm"),
    rename("attention.q_b_proj", "self_attn.q_b_proj", when=has_low_rank_q),
    rename("attention.q_b_proj", "self_attn.q_proj", when=lambda arch: not has_low_rank_q(arch)),
    reorder("attention.kv_b_proj", "self_attn.kv_b_proj", keys_then_values),
    rename("attention.dense", "self_attn.o_proj"),
)
