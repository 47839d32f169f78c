"""Cohere's Command R: attention and MLP in parallel behind one layer norm without bias.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/commandr/{config,model}.py;
huggingface/transformers 5 modeling_cohere.py.
"""

from typing import Any

from llmc.arch import ModelArch
from llmc.builders.families import llama
from llmc.builders.families.family import Family
from llmc.builders.families.rules import rename
from llmc.builders.families.sizes import Fields, read_activation, read_sizes
from llmc.builders.hf.config import HfConfig
from llmc.builders.hf.rope import read_rope


def read_fields(config: HfConfig) -> Fields:
    """Return the fields that Cohere's models share."""
    sizes = read_sizes(config)
    bias = config.optional(bool, "attention_bias", False)
    return (
        sizes
        | read_activation(config)
        | read_rope(config, sizes["head_size"]).fields()
        | {
            "norm_type": "layer_norm",
            "norm_epsilon": config.optional(float, "layer_norm_eps", 1e-5),
            "parallel_attention": True,
            "position_embedding_type": "rope_gptj",
            "attn_bias": bias,
            "dense_bias": bias,
            "logits_scale": config.optional(float, "logit_scale", 0.0625),
            "tie_word_embeddings": config.optional(bool, "tie_word_embeddings", True),
        }
    )


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    norms_heads = config.optional(bool, "use_qk_norm", False)
    return ModelArch(**read_fields(config) | {"qk_norm": "per_head" if norms_heads else None})


def settings(arch: ModelArch) -> dict[str, Any]:
    """Return the further keys of TensorRT-LLM's commandr."""
    return {
        "disable_weight_only_quant_plugin": False,
        "load_model_on_cpu": False,
        "output_multiplier_scale": arch.logits_scale,
    }


LAYER_RULES = (
    rename("input_layernorm", "input_layernorm"),
    *llama.ATTENTION_RULES,
    *llama.QK_NORM_RULES,
    *llama.MLP_RULES,
)
LEFT_OUT = ("mlp_bias", "rotary_scaling", "tie_word_embeddings")

FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="model.layers.{layer}.",
    rules=llama.RULES,
    layer_rules=LAYER_RULES,
    harmless=llama.HARMLESS,
    settings=settings,
    left_out=LEFT_OUT,
    tensorrt_llm="0.17",
)
