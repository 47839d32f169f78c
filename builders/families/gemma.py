"""Gemma: Llama with norms stored less 1, an embedding scaled by sqrt(hidden_size), and gelu.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/gemma/{config,convert}.py;
huggingface/transformers 5 modeling_gemma.py.
"""

from typing import Any

from llmc.arch import ModelArch
from llmc.builders.families import llama
from llmc.builders.families.family import Family
from llmc.builders.families.rules import add_one, rename
from llmc.builders.families.sizes import Fields, read_activation, read_sizes
from llmc.builders.hf.config import HfConfig
from llmc.builders.hf.rope import read_rope


def read_fields(config: HfConfig) -> Fields:
    """Return the fields that every Gemma has, but those for positions."""
    sizes = read_sizes(config)
    # Old files name two activations; the newer key is the one that counts.
    key = "hidden_activation" if config.has("hidden_activation") else "hidden_act"
    config.raw("hidden_act")
    bias = config.optional(bool, "attention_bias", False)
    return (
        sizes
        | read_activation(config, key, "gelu_pytorch_tanh")
        | {
            "norm_epsilon": config.optional(float, "rms_norm_eps", 1e-6),
            "attn_bias": bias,
            "dense_bias": bias,
            "embedding_scale": sizes["hidden_size"] ** 0.5,
            "tie_word_embeddings": config.optional(bool, "tie_word_embeddings", True),
        }
    )


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    fields = read_fields(config)
    return ModelArch(**fields | read_rope(config, fields["head_size"]).fields())


def settings(arch: ModelArch) -> dict[str, Any]:
    """Return the further keys of TensorRT-LLM's gemma."""
    return {"inter_layernorms": False}


RULES = (
    rename("transformer.vocab_embedding", "model.embed_tokens"),
    add_one("transformer.ln_f", "model.norm"),
    rename("lm_head", "lm_head"),
)
LEFT_OUT = ("tie_word_embeddings",)

FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="model.layers.{layer}.",
    rules=RULES,
    layer_rules=(
        add_one("input_layernorm", "input_layernorm"),
        add_one("post_layernorm", "post_attention_layernorm"),
        *llama.ATTENTION_RULES,
        *llama.MLP_RULES,
    ),
    harmless=llama.HARMLESS,
    settings=settings,
    left_out=LEFT_OUT,
    tensorrt_llm="0.17",
)
