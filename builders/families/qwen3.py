"""Qwen 3: Qwen 2 with norms of each head of q and k, and no biases by default.

Source: NVIDIA/TensorRT-LLM 1.x tensorrt_llm/models/qwen/config.py.
"""

from functools import partial

from llmc.arch import ModelArch
from llmc.builders.families import llama, qwen2
from llmc.builders.families.family import Family
from llmc.builders.hf.config import HfConfig


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    bias = config.optional(bool, "attention_bias", False)
    fields = qwen2.read_fields(config)
    return ModelArch(**fields | {"qk_norm": "head", "attn_bias": bias, "dense_bias": bias})


FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="model.layers.{layer}.",
    rules=llama.RULES,
    layer_rules=(llama.NORM_RULES + llama.ATTENTION_RULES + llama.QK_NORM_RULES + llama.MLP_RULES),
    harmless=llama.HARMLESS,
    settings=partial(qwen2.settings, qwen_type="qwen3"),
    tensorrt_llm="0.20",
)
