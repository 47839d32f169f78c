"""gpt-oss: experts with biases and a clamped gate, attention sinks, windows in every other layer.

Released weights are MXFP4, which become plain ones of the same values (llmc.quant.mxfp4).
Source: huggingface/transformers 5.24 models/gpt_oss and integrations/mxfp4.py.
"""

from dataclasses import replace
from typing import Any

from llmc.arch import ModelArch, MoeArch
from llmc.builders.families import llama
from llmc.builders.families.family import Family
from llmc.builders.families.rules import interleaved_experts, rename, transposed_experts
from llmc.builders.families.sizes import (
    moe_settings,
    read_layer_types,
    read_sizes,
    windows,
)
from llmc.builders.hf.config import HfConfig
from llmc.builders.hf.rope import Rope, read_rope

_THETA = 150000.0
_SCALING = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""What transformers rotates by where config.json does not say."""


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    sizes = read_sizes(config)
    slides = read_layer_types(config, sizes["num_hidden_layers"], lambda layer: layer % 2 == 0)
    window = config.count("sliding_window", 128)
    bias = config.optional(bool, "attention_bias", True)
    moe = MoeArch(
        num_experts=config.count("num_local_experts"),
        top_k=config.count("num_experts_per_tok"),
        intermediate_size=sizes["intermediate_size"],
        router_bias=True,
        expert_bias=True,
        swiglu_limit=config.optional(float, "swiglu_limit", 7.0),
        swiglu_alpha=config.optional(float, "swiglu_alpha", 1.702),
    )
    rope = _read_rope(config, sizes["head_size"])
    config.expect("hidden_act", "silu")
    # The same in the words of openai's own code.
    config.expect("experts_per_token", moe.top_k)
    original = (rope.scaling or {}).get("original_max_position_embeddings")
    config.expect("initial_context_length", original)
    config.maybe(float, "router_aux_loss_coef")
    return ModelArch(
        **sizes
        | rope.fields()
        | windows(window if window < sizes["max_position_embeddings"] else None, slides)
        | {
            "hidden_act": "swiglu",
            "norm_epsilon": config.optional(float, "rms_norm_eps", 1e-5),
            "attn_bias": bias,
            "dense_bias": bias,
            "attention_sinks": True,
            "tie_word_embeddings": config.optional(bool, "tie_word_embeddings", False),
            "moe": moe,
        }
    )


def _read_rope(config: HfConfig, head_size: int) -> Rope:
    said = config.has("rope_parameters") or config.has("rope_scaling")
    rope = read_rope(config, head_size, theta=_THETA)
    return rope if said else replace(rope, scaling=_SCALING)


def settings(arch: ModelArch) -> dict[str, Any]:
    """Return the further keys of config.json: experts as TensorRT-LLM's other models have them."""
    return {"moe": moe_settings(arch, normalization_mode=1)}


FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="model.layers.{layer}.",
    rules=llama.RULES,
    layer_rules=(
        *llama.NORM_RULES,
        *llama.ATTENTION_RULES,
        rename("attention.sinks", "self_attn.sinks"),
        rename("mlp.router", "mlp.router"),
        *interleaved_experts("mlp.fc", "mlp.experts.gate_up_proj"),
        *transposed_experts("mlp.proj", "mlp.experts.down_proj"),
    ),
    harmless=llama.HARMLESS,
    settings=settings,
)
