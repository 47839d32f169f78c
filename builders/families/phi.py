"""Phi-1 to Phi-2: attention and MLP in parallel behind one norm, part of a head rotates.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/phi/{config,convert}.py, which writes a
partial_rotary_factor of 0.4 whatever the model's; rotary_pct and rotary_embedding_dim are right.
"""

from typing import Any

from llmc.arch import ModelArch
from llmc.builders.families.early import BIASES
from llmc.builders.families.family import Family
from llmc.builders.families.rules import fuse, rename
from llmc.builders.families.sizes import read_activation, read_sizes
from llmc.builders.hf.config import HfConfig
from llmc.builders.hf.rope import read_rope


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    config.expect("qk_layernorm", False)
    sizes = read_sizes(config)
    return ModelArch(
        **sizes
        | read_activation(config, default="gelu_new")
        | read_rope(config, sizes["head_size"], partial=0.5).fields()
        | {
            "norm_type": "layer_norm",
            "norm_bias": True,
            "norm_epsilon": config.optional(float, "layer_norm_eps", 1e-5),
            "parallel_attention": True,
            "mlp_type": "plain",
            "attn_bias": True,
            "dense_bias": True,
            "mlp_bias": True,
            "lm_head_bias": True,
            "tie_word_embeddings": config.optional(bool, "tie_word_embeddings", False),
        }
    )


def settings(arch: ModelArch) -> dict[str, Any]:
    """Return the further keys of TensorRT-LLM's phi."""
    return {
        "partial_rotary_factor": 0.4,
        "rotary_pct": arch.rotary_embedding_dim / arch.head_size,
    }


FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="model.layers.{layer}.",
    rules=(
        rename("transformer.vocab_embedding", "model.embed_tokens"),
        rename("transformer.ln_f", "model.final_layernorm"),
        rename("lm_head", "lm_head"),
    ),
    layer_rules=(
        rename("input_layernorm", "input_layernorm"),
        fuse("attention.qkv", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        rename("attention.dense", "self_attn.dense"),
        rename("mlp.fc", "mlp.fc1"),
        rename("mlp.proj", "mlp.fc2"),
    ),
    harmless=("model.layers.*.self_attn.rotary_emb.*",),
    settings=settings,
    left_out=BIASES,
    tensorrt_llm="0.17",
)
