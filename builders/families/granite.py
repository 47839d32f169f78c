"""Granite 3: Llama with four multipliers, of embedding, attention, residual and logits.

Source: huggingface/transformers 5 modeling_granite.py; keys of NVIDIA/TensorRT-LLM 1.x
tensorrt_llm/models/llama/config.py.
"""

from dataclasses import replace
from typing import Any

from llmc.arch import ModelArch
from llmc.builders.families import llama
from llmc.builders.families.family import Family
from llmc.builders.hf.config import HfConfig


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    return replace(
        llama.read_arch(config),
        embedding_scale=config.optional(float, "embedding_multiplier", 1.0),
        attention_scale=config.optional(float, "attention_multiplier", 1.0),
        residual_scale=config.optional(float, "residual_multiplier", 1.0),
        logits_scale=1.0 / config.optional(float, "logits_scaling", 1.0),
    )


def settings(arch: ModelArch) -> dict[str, Any]:
    """Return the further keys of TensorRT-LLM's granite, which is its llama."""
    return llama.settings(arch) | {
        "embedding_multiplier": arch.embedding_scale,
        "attention_multiplier": arch.attention_scale,
        "residual_multiplier": arch.residual_scale,
        "output_multiplier_scale": arch.logits_scale,
    }


FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="model.layers.{layer}.",
    rules=llama.RULES,
    layer_rules=llama.NORM_RULES + llama.ATTENTION_RULES + llama.MLP_RULES,
    harmless=llama.HARMLESS,
    settings=settings,
    tensorrt_llm="1.0",
)
