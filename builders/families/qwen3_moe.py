"""Qwen 3 MoE: Qwen 3 with experts, none of them shared.

Source: NVIDIA/TensorRT-LLM 1.x tensorrt_llm/models/qwen/config.py; huggingface/transformers 5.24
models/qwen3_moe.
"""

from functools import partial

from llmc.arch import ModelArch
from llmc.builders.families import llama, qwen2
from llmc.builders.families.family import Family
from llmc.builders.families.qwen2_moe import expert_rules, read_experts
from llmc.builders.hf.config import HfConfig


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    bias = config.optional(bool, "attention_bias", False)
    fields = qwen2.read_fields(config)
    fields |= read_experts(config, fields, shared_expert=False)
    return ModelArch(**fields | {"qk_norm": "head", "attn_bias": bias, "dense_bias": bias})


FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="model.layers.{layer}.",
    rules=llama.RULES,
    layer_rules=llama.NORM_RULES + llama.ATTENTION_RULES + llama.QK_NORM_RULES + expert_rules(),
    harmless=llama.HARMLESS,
    settings=partial(qwen2.settings, qwen_type="qwen3_moe"),
    tensorrt_llm="0.20",
)
