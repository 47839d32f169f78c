"""Phi 3, 3.5 and 4: Llama with q, k, v and both halves of the MLP stored as one tensor each.

Longer variants rotate by longrope, and Phi 4 mini turns part of a head only.
Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/phi3/{config,convert}.py;
huggingface/transformers 5 modeling_phi3.py. NVIDIA's converter drops the sliding window; it is kept
here.
"""

from typing import Any

from llmc.arch import ModelArch
from llmc.builders.families import llama
from llmc.builders.families.family import Family
from llmc.builders.families.rules import rename, reorder, swapped_halves
from llmc.builders.families.sizes import read_sizes, read_window
from llmc.builders.hf.config import HfConfig
from llmc.builders.hf.rope import read_rope


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    sizes = read_sizes(config)
    config.expect("hidden_act", "silu")
    config.expect("full_attn_mod", 1)
    config.expect("interpolate_factor", 1)
    rope = read_rope(config, sizes["head_size"], partial=1.0)
    is_long = rope.scaling is not None and "long_factor" in rope.scaling
    return ModelArch(
        **sizes
        | rope.fields()
        | {
            "hidden_act": "swiglu",
            "mlp_type": "gated_fused",
            "norm_epsilon": config.optional(float, "rms_norm_eps", 1e-5),
            "position_embedding_type": "long_rope" if is_long else "rope_gpt_neox",
            "sliding_window": read_window(config, sizes["max_position_embeddings"]),
            "tie_word_embeddings": config.optional(bool, "tie_word_embeddings", False),
        }
    )


def settings(arch: ModelArch) -> dict[str, Any]:
    """Return the further keys of TensorRT-LLM's phi3: longrope under its own names."""
    scaling = arch.rotary_scaling or {}
    if "long_factor" not in scaling:
        return {}
    return {
        "longrope_scaling_short_factors": scaling["short_factor"],
        "longrope_scaling_long_factors": scaling["long_factor"],
        "original_max_position_embeddings": scaling.get("original_max_position_embeddings"),
    }


FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="model.layers.{layer}.",
    rules=llama.RULES,
    layer_rules=(
        *llama.NORM_RULES,
        rename("attention.qkv", "self_attn.qkv_proj"),
        rename("attention.dense", "self_attn.o_proj"),
        reorder("mlp.fc", "mlp.gate_up_proj", swapped_halves),
        rename("mlp.proj", "mlp.down_proj"),
    ),
    harmless=llama.HARMLESS,
    settings=settings,
    left_out=("attn_bias", "mlp_bias", "tie_word_embeddings"),
    tensorrt_llm="0.17",
)
