"""Falcon: 7B and RW-1B, and the newer architecture of 11B, 40B and 180B.

Attention and MLP are parallel but in RW models, which have ALiBi instead of a rotation. The rows of
query_key_value are grouped by KV head: one with all queries in 7B, one for each query head in RW.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/falcon/{config,convert}.py.
"""

from typing import Any

from llmc.arch import ModelArch
from llmc.builders.families.early import BIASES
from llmc.builders.families.family import Family
from llmc.builders.families.rules import grouped_qkv, rename, reorder
from llmc.builders.families.sizes import Fields, read_activation, read_sizes
from llmc.builders.hf.config import HfConfig
from llmc.builders.hf.rope import read_rope


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    sizes = read_sizes(
        config, intermediate_size="ffn_hidden_size", num_key_value_heads="num_attention_heads"
    )
    bias = config.optional(bool, "bias", False)
    # Read in any case: what has ALiBi may bring settings of a rotation, which it ignores.
    rope = read_rope(config, sizes["head_size"])
    positions: Fields = rope.fields()
    if config.optional(bool, "alibi", False):
        positions = {"position_embedding_type": "alibi_with_scale"}
    return ModelArch(
        **sizes
        | _attention(config, sizes["num_attention_heads"])
        | read_activation(config, "activation", "gelu")
        | positions
        | {
            "norm_type": "layer_norm",
            "norm_bias": True,
            "norm_epsilon": config.optional(float, "layer_norm_epsilon", 1e-5),
            "mlp_type": "plain",
            "attn_bias": bias,
            "dense_bias": bias,
            "mlp_bias": bias,
            "tie_word_embeddings": config.optional(bool, "tie_word_embeddings", True),
        }
    )


def _attention(config: HfConfig, num_heads: int) -> Fields:
    """Return the KV heads and what is parallel. Source: transformers 5.24 FalconDecoderLayer."""
    is_new = config.optional(bool, "new_decoder_architecture", False)
    is_parallel = config.optional(bool, "parallel_attn", True) or is_new
    num_kv_heads = config.count("num_kv_heads", num_heads)
    multi_query = config.optional(bool, "multi_query", True)
    if not is_new:
        num_kv_heads = 1 if multi_query else num_heads
    if num_heads % num_kv_heads:
        config.refuse("num_kv_heads", num_kv_heads, f"a divisor of {num_heads} heads")
    norms = config.optional(int, "num_ln_in_parallel_attn", 2 if is_new else 1)
    if norms not in (1, 2) or (norms == 2 and not is_new):
        config.refuse("num_ln_in_parallel_attn", norms, "2 with new_decoder_architecture, or 1")
    return {
        "num_key_value_heads": num_kv_heads,
        "parallel_attention": is_parallel,
        "parallel_norms": norms if is_parallel else 1,
        "mlp_norm": "mlp_layernorm" if is_parallel else "post_layernorm",
    }


def settings(arch: ModelArch) -> dict[str, Any]:
    """Return the further keys of TensorRT-LLM's falcon."""
    is_new = arch.parallel_norms == 2 or 1 < arch.num_key_value_heads < arch.num_attention_heads
    return {
        "bias": arch.attn_bias,
        "new_decoder_architecture": is_new,
        "num_ln_in_parallel_attn": arch.parallel_norms if is_new else None,
        "parallel_attention": arch.parallel_attention,
    }


FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="transformer.h.{layer}.",
    base_prefix="transformer.",
    rules=(
        rename("transformer.vocab_embedding", "transformer.word_embeddings"),
        rename("transformer.ln_f", "transformer.ln_f"),
        rename("lm_head", "lm_head"),
    ),
    layer_rules=(
        rename("input_layernorm", "input_layernorm", when=lambda arch: arch.parallel_norms == 1),
        rename("input_layernorm", "ln_attn", when=lambda arch: arch.parallel_norms == 2),
        rename("mlp_layernorm", "ln_mlp"),
        rename("post_layernorm", "post_attention_layernorm"),
        reorder("attention.qkv", "self_attention.query_key_value", grouped_qkv),
        rename("attention.dense", "self_attention.dense"),
        rename("mlp.fc", "mlp.dense_h_to_4h"),
        rename("mlp.proj", "mlp.dense_4h_to_h"),
    ),
    harmless=("*.self_attention.rotary_emb.*",),
    settings=settings,
    left_out=("rotary_scaling", *BIASES),
    tensorrt_llm="0.17",
)
