"""GPT-J: attention and MLP in parallel behind one norm, rotation of neighbouring columns.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/gptj/{config,convert}.py.
"""

from typing import Any

from llmc.arch import ModelArch
from llmc.builders.families.early import BIASES, ROTARY
from llmc.builders.families.family import Family
from llmc.builders.families.rules import fuse, rename
from llmc.builders.families.sizes import read_activation, read_sizes
from llmc.builders.hf.config import HfConfig

NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "num_key_value_heads": "n_head",
}


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    config.expect("rotary", True)
    config.expect("scale_attn_weights", True)
    sizes = read_sizes(config, **NAMES)
    rotary_dim = config.count("rotary_dim", 64)
    if rotary_dim % 2 or rotary_dim > sizes["head_size"]:
        config.refuse("rotary_dim", rotary_dim, f"an even number up to {sizes['head_size']}")
    return ModelArch(
        **sizes
        | read_activation(config, "activation_function", "gelu_new")
        | {
            "norm_type": "layer_norm",
            "norm_bias": True,
            "norm_epsilon": config.optional(float, "layer_norm_epsilon", 1e-5),
            "parallel_attention": True,
            "position_embedding_type": "rope_gptj",
            "rotary_embedding_dim": rotary_dim,
            "mlp_type": "plain",
            "mlp_bias": True,
            "lm_head_bias": True,
            "tie_word_embeddings": config.optional(bool, "tie_word_embeddings", False),
        }
    )


def settings(arch: ModelArch) -> dict[str, Any]:
    """Return the further keys of TensorRT-LLM's gptj."""
    return {"rotary_dim": arch.rotary_embedding_dim}


FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="transformer.h.{layer}.",
    rules=(
        rename("transformer.vocab_embedding", "transformer.wte"),
        rename("transformer.ln_f", "transformer.ln_f"),
        rename("lm_head", "lm_head"),
    ),
    layer_rules=(
        rename("input_layernorm", "ln_1"),
        fuse("attention.qkv", "attn.q_proj", "attn.k_proj", "attn.v_proj"),
        rename("attention.dense", "attn.out_proj"),
        rename("mlp.fc", "mlp.fc_in"),
        rename("mlp.proj", "mlp.fc_out"),
    ),
    harmless=("*.attn.bias", "*.attn.masked_bias"),
    settings=settings,
    left_out=ROTARY + BIASES,
    tensorrt_llm="0.17",
)
