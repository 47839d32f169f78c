"""OLMo 2: Llama with norms of what a block gives instead of what it reads, and of all q and all k.

Source: huggingface/transformers 5 modeling_olmo2.py.
"""

from dataclasses import replace

from llmc.arch import ModelArch
from llmc.builders.families import llama
from llmc.builders.families.family import Family
from llmc.builders.families.rules import rename
from llmc.builders.hf.config import HfConfig


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    config.expect("clip_qkv", None)
    return replace(
        llama.read_arch(config),
        norm_epsilon=config.optional(float, "rms_norm_eps", 1e-5),
        norm_placement="post",
        qk_norm="full",
    )


FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="model.layers.{layer}.",
    rules=llama.RULES,
    layer_rules=(
        rename("post_layernorm", "post_attention_layernorm"),
        rename("post_feedforward_layernorm", "post_feedforward_layernorm"),
        *llama.ATTENTION_RULES,
        *llama.QK_NORM_RULES,
        *llama.MLP_RULES,
    ),
    harmless=llama.HARMLESS,
)
