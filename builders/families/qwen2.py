"""Qwen 2 and 2.5: Llama with biases on q, k and v, and a window in the upper layers when asked for.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/qwen/{config,convert}.py;
huggingface/transformers 5 configuration_qwen2.py (which layers slide).
"""

from typing import Any

from llmc.arch import ModelArch
from llmc.builders.families import llama
from llmc.builders.families.family import Family
from llmc.builders.families.sizes import (
    Fields,
    moe_settings,
    read_activation,
    read_layer_types,
    read_sizes,
    read_window,
    windows,
)
from llmc.builders.hf.config import HfConfig
from llmc.builders.hf.rope import read_rope


def read_fields(config: HfConfig) -> Fields:
    """Return the fields that every Qwen has."""
    sizes = read_sizes(config)
    first = config.optional(int, "max_window_layers", 28)
    slides = read_layer_types(config, sizes["num_hidden_layers"], lambda layer: layer >= first)
    window = None
    if config.optional(bool, "use_sliding_window", False):
        window = read_window(config, sizes["max_position_embeddings"])
    config.raw("sliding_window")  # without the switch anything may stand there
    return (
        sizes
        | read_activation(config)
        | read_rope(config, sizes["head_size"]).fields()
        | windows(window, slides)
        | {
            "norm_epsilon": config.optional(float, "rms_norm_eps", 1e-6),
            "tie_word_embeddings": config.optional(bool, "tie_word_embeddings", False),
        }
    )


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    return ModelArch(**read_fields(config) | {"attn_bias": True})


def settings(arch: ModelArch, qwen_type: str = "qwen2") -> dict[str, Any]:
    """Return the further keys of TensorRT-LLM's qwen."""
    moe = arch.moe
    return {
        "disable_weight_only_quant_plugin": False,
        "moe": moe_settings(arch, normalization_mode=0),
        "moe_intermediate_size": 0 if moe is None else moe.intermediate_size,
        "moe_shared_expert_intermediate_size": (
            0 if moe is None else moe.shared_expert_intermediate_size
        ),
        "num_labels": 1,
        "qwen_type": qwen_type,
        "seq_length": 8192,
        "use_logn_attn": False,
    }


FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="model.layers.{layer}.",
    rules=llama.RULES,
    layer_rules=llama.NORM_RULES + llama.ATTENTION_RULES + llama.MLP_RULES,
    harmless=llama.HARMLESS,
    settings=settings,
    tensorrt_llm="0.17",
    smoothquant=True,
)
