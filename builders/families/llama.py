"""Llama and Mistral: pre-norm decoder, RoPE on the whole head, grouped-query attention, gated MLP.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/llama/{config,convert}.py; note that `mlp.fc`
is Hugging Face's gate_proj (the activated half) and `mlp.gate` its up_proj. Two deviations, for
correctness: NVIDIA's converter writes mlp_bias false and drops the MLP's biases even when the model
has them, and drops Mistral's sliding_window; both are kept here.
"""

from typing import Any

from llmc.arch import ModelArch
from llmc.builders.families.family import Family
from llmc.builders.families.rules import fuse, rename
from llmc.builders.families.sizes import moe_settings, read_activation, read_sizes, read_window
from llmc.builders.hf.config import HfConfig
from llmc.builders.hf.rope import read_rope


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    sizes = read_sizes(config)
    bias = config.optional(bool, "attention_bias", False)
    config.expect("rope_interleaved", False)
    return ModelArch(
        **sizes
        | read_activation(config)
        | read_rope(config, sizes["head_size"]).fields()
        | {
            "norm_epsilon": config.optional(float, "rms_norm_eps", 1e-6),
            "attn_bias": bias,
            "dense_bias": bias,
            "mlp_bias": config.optional(bool, "mlp_bias", False),
            "tie_word_embeddings": config.optional(bool, "tie_word_embeddings", False),
            "sliding_window": read_window(config, sizes["max_position_embeddings"]),
        }
    )


def settings(arch: ModelArch) -> dict[str, Any]:
    """Return the further keys of TensorRT-LLM's llama."""
    return {
        "disable_weight_only_quant_plugin": False,
        "fc_after_embed": False,
        "layer_idx_offset": 0,
        "moe": moe_settings(arch, normalization_mode=None),
        "remove_duplicated_kv_heads": False,
        "residual_mlp": False,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
    }


RULES = (
    rename("transformer.vocab_embedding", "model.embed_tokens"),
    rename("transformer.ln_f", "model.norm"),
    rename("lm_head", "lm_head"),
)
NORM_RULES = (
    rename("input_layernorm", "input_layernorm"),
    rename("post_layernorm", "post_attention_layernorm"),
)
ATTENTION_RULES = (
    fuse("attention.qkv", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    rename("attention.dense", "self_attn.o_proj"),
)
QK_NORM_RULES = (
    rename("attention.q_layernorm", "self_attn.q_norm"),
    rename("attention.k_layernorm", "self_attn.k_norm"),
)
MLP_RULES = (
    rename("mlp.fc", "mlp.gate_proj"),
    rename("mlp.gate", "mlp.up_proj"),
    rename("mlp.proj", "mlp.down_proj"),
)
HARMLESS = ("model.layers.*.self_attn.rotary_emb.*",)

FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="model.layers.{layer}.",
    rules=RULES,
    layer_rules=NORM_RULES + ATTENTION_RULES + MLP_RULES,
    harmless=HARMLESS,
    settings=settings,
    tensorrt_llm="0.17",
    smoothquant=True,
)
