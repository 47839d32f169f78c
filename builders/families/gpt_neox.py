"""GPT-NeoX and Pythia: attention and MLP in parallel, each behind a norm of its own.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/gptneox/{config,convert}.py, which knows the
parallel form only; the other is kept here.
"""

from typing import Any

from llmc.arch import ModelArch
from llmc.builders.families.early import EARLIEST
from llmc.builders.families.family import Family
from llmc.builders.families.rules import interleaved_qkv, rename, reorder
from llmc.builders.families.sizes import read_activation, read_sizes
from llmc.builders.hf.config import HfConfig
from llmc.builders.hf.rope import read_rope


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    sizes = read_sizes(config, num_key_value_heads="num_attention_heads")
    rope = read_rope(
        config,
        sizes["head_size"],
        partial=config.optional(float, "rotary_pct", 0.25),
        theta=config.optional(float, "rotary_emb_base", 10000.0),
    )
    bias = config.optional(bool, "attention_bias", True)
    return ModelArch(
        **sizes
        | read_activation(config, default="gelu")
        | rope.fields()
        | {
            "norm_type": "layer_norm",
            "norm_bias": True,
            "norm_epsilon": config.optional(float, "layer_norm_eps", 1e-5),
            "parallel_attention": config.optional(bool, "use_parallel_residual", True),
            "parallel_norms": 2,
            "mlp_norm": "post_attention_layernorm",
            "mlp_type": "plain",
            "attn_bias": bias,
            "dense_bias": bias,
            "mlp_bias": True,
            "tie_word_embeddings": config.optional(bool, "tie_word_embeddings", False),
        }
    )


def settings(arch: ModelArch) -> dict[str, Any]:
    """Return the further keys of TensorRT-LLM's gptneox."""
    return {
        "rotary_emb_base": arch.rotary_base,
        "rotary_pct": arch.rotary_embedding_dim / arch.head_size,
    }


FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="gpt_neox.layers.{layer}.",
    rules=(
        rename("transformer.vocab_embedding", "gpt_neox.embed_in"),
        rename("transformer.ln_f", "gpt_neox.final_layer_norm"),
        rename("lm_head", "embed_out"),
    ),
    layer_rules=(
        rename("input_layernorm", "input_layernorm"),
        reorder("attention.qkv", "attention.query_key_value", interleaved_qkv),
        rename("attention.dense", "attention.dense"),
        rename("post_attention_layernorm", "post_attention_layernorm"),
        rename("mlp.fc", "mlp.dense_h_to_4h"),
        rename("mlp.proj", "mlp.dense_4h_to_h"),
    ),
    harmless=("*.attention.bias", "*.attention.masked_bias", "*.attention.rotary_emb.*"),
    settings=settings,
    left_out=EARLIEST,
    tensorrt_llm="0.17",
)
