"""Gemma 2: Gemma with norms around both blocks, soft caps, and a window in every other layer.

NVIDIA's converter drops the window; it is kept here.
Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/gemma/{config,convert}.py;
huggingface/transformers 5 modeling_gemma2.py.
"""

from typing import Any

from llmc.arch import ModelArch
from llmc.builders.families import gemma, llama
from llmc.builders.families.family import Family
from llmc.builders.families.rules import add_one
from llmc.builders.families.sizes import Fields, read_layer_types, read_window, windows
from llmc.builders.hf.config import HfConfig
from llmc.builders.hf.rope import read_rope


def read_fields(config: HfConfig) -> Fields:
    """Return the fields that Gemma 2 and 3 share."""
    return gemma.read_fields(config) | {
        "norm_placement": "sandwich",
        "mlp_norm": "pre_feedforward_layernorm",
        "attention_scale": config.optional(int, "query_pre_attn_scalar", 256) ** -0.5,
        "attn_logit_softcapping": config.maybe(float, "attn_logit_softcapping"),
        "final_logit_softcapping": config.maybe(float, "final_logit_softcapping"),
    }


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    fields = read_fields(config)
    slides = read_layer_types(config, fields["num_hidden_layers"], lambda layer: layer % 2 == 0)
    window = read_window(config, fields["max_position_embeddings"])
    return ModelArch(
        **fields | windows(window, slides) | read_rope(config, fields["head_size"]).fields()
    )


def settings(arch: ModelArch) -> dict[str, Any]:
    """Return the further keys of TensorRT-LLM's gemma2."""
    assert arch.attention_scale is not None
    return {
        "inter_layernorms": True,
        "query_pre_attn_scalar": round(arch.attention_scale**-2),
        "attn_logit_softcapping": arch.attn_logit_softcapping,
        "final_logit_softcapping": arch.final_logit_softcapping,
    }


NORM_RULES = (
    add_one("input_layernorm", "input_layernorm"),
    add_one("post_layernorm", "post_attention_layernorm"),
    add_one("pre_feedforward_layernorm", "pre_feedforward_layernorm"),
    add_one("post_feedforward_layernorm", "post_feedforward_layernorm"),
)

FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="model.layers.{layer}.",
    rules=gemma.RULES,
    layer_rules=(*NORM_RULES, *llama.ATTENTION_RULES, *llama.MLP_RULES),
    harmless=llama.HARMLESS,
    settings=settings,
    left_out=gemma.LEFT_OUT,
    tensorrt_llm="0.17",
)
