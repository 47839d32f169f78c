"""GPT-2: learned positions, layer norms, biases everywhere, a plain MLP; weights stored [in, out].

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/gpt/{config,convert}.py.
"""

from typing import Any

from llmc.arch import ModelArch
from llmc.builders.families.family import Family
from llmc.builders.families.rules import rename, transpose
from llmc.builders.families.sizes import Fields, moe_settings, read_activation, read_sizes
from llmc.builders.hf.config import HfConfig

NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
}


def read_fields(config: HfConfig, *, activation: str) -> Fields:
    """Return the fields that GPT-2 and GPT-BigCode share; `activation` is the default one."""
    config.expect("scale_attn_weights", True)
    config.expect("add_cross_attention", False)
    return (
        read_sizes(config, **NAMES)
        | read_activation(config, "activation_function", activation)
        | {
            "norm_type": "layer_norm",
            "norm_bias": True,
            "norm_epsilon": config.optional(float, "layer_norm_epsilon", 1e-5),
            "position_embedding_type": "learned_absolute",
            "attn_bias": True,
            "dense_bias": True,
            "mlp_bias": True,
            "mlp_type": "plain",
            "tie_word_embeddings": config.optional(bool, "tie_word_embeddings", True),
        }
    )


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    config.expect("scale_attn_by_inverse_layer_idx", False)
    config.raw("reorder_and_upcast_attn")  # precision of training; float32 scores here
    return ModelArch(**read_fields(config, activation="gelu_new"))


def settings(arch: ModelArch, variant: str = "gpt2") -> dict[str, Any]:
    """Return the further keys of TensorRT-LLM's gpt."""
    return {
        "apply_query_key_layer_scaling": False,
        "bias": arch.mlp_bias,
        "embedding_scale": None,
        "gpt_variant": variant,
        "inner_layernorm": False,
        "moe": moe_settings(arch, normalization_mode=1),
        "norm_before_bmm1": False,
        "q_scaling": 1,
        "rotary_pct": 1.0,
    }


LEFT_OUT = ("attn_bias", "mlp_bias", "tie_word_embeddings")

FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="transformer.h.{layer}.",
    base_prefix="transformer.",
    rules=(
        rename("transformer.vocab_embedding", "transformer.wte"),
        rename("transformer.position_embedding", "transformer.wpe"),
        rename("transformer.ln_f", "transformer.ln_f"),
        rename("lm_head", "lm_head"),
    ),
    layer_rules=(
        rename("input_layernorm", "ln_1"),
        transpose("attention.qkv", "attn.c_attn"),
        transpose("attention.dense", "attn.c_proj"),
        rename("post_layernorm", "ln_2"),
        transpose("mlp.fc", "mlp.c_fc"),
        transpose("mlp.proj", "mlp.c_proj"),
    ),
    harmless=("*.attn.bias", "*.attn.masked_bias"),
    settings=settings,
    left_out=LEFT_OUT,
    tensorrt_llm="0.17",
    smoothquant=True,
)
