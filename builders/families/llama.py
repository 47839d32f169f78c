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
from llmc.builders.hf.config import HfConfig
from llmc.builders.hf.rope import read_rope

_SETTINGS: dict[str, Any] = {
    "disable_weight_only_quant_plugin": False,
    "fc_after_embed": False,
    "layer_idx_offset": 0,
    "moe": {
        "num_experts": 0,
        "shared_expert_intermediate_size": 0,
        "top_k": 0,
        "normalization_mode": None,
        "sparse_mixer_epsilon": 0.01,
        "tp_mode": 0,
        "device_limited_n_group": 0,
        "device_limited_topk_group": 0,
        "device_limited_routed_scaling_factor": 1.0,
    },
    "remove_duplicated_kv_heads": False,
    "residual_mlp": False,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
}


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    architecture = config.architecture
    assert architecture is not None
    hidden_size = config.count("hidden_size")
    num_heads = config.count("num_attention_heads")
    head_size = config.count("head_dim", max(1, hidden_size // num_heads))
    if not config.has("head_dim") and hidden_size % num_heads:
        wanted = f"a multiple of num_attention_heads {num_heads}, or head_dim"
        config.refuse("hidden_size", hidden_size, wanted)
    num_kv_heads = config.count("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        wanted = f"a divisor of num_attention_heads {num_heads}"
        config.refuse("num_key_value_heads", num_kv_heads, wanted)
    max_positions = config.count("max_position_embeddings")
    rotary_base, rotary_scaling = read_rope(config, rotary_dim=head_size)
    window = config.maybe_count("sliding_window")
    bias = config.optional(bool, "attention_bias", False)
    config.expect("hidden_act", "silu")
    config.expect("rope_interleaved", False)
    return ModelArch(
        architecture=architecture,
        hidden_size=hidden_size,
        num_hidden_layers=config.count("num_hidden_layers"),
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_size=head_size,
        intermediate_size=config.count("intermediate_size"),
        vocab_size=config.count("vocab_size"),
        max_position_embeddings=max_positions,
        norm_epsilon=config.optional(float, "rms_norm_eps", 1e-6),
        rotary_base=rotary_base,
        rotary_embedding_dim=head_size,
        rotary_scaling=rotary_scaling,
        attn_bias=bias,
        dense_bias=bias,
        mlp_bias=config.optional(bool, "mlp_bias", False),
        tie_word_embeddings=config.optional(bool, "tie_word_embeddings", False),
        # A window no sequence can outgrow is none.
        sliding_window=window if window is not None and window < max_positions else None,
    )


FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="model.layers.{layer}.",
    rules=(
        rename("transformer.vocab_embedding", "model.embed_tokens"),
        rename("transformer.ln_f", "model.norm"),
        rename("lm_head", "lm_head"),
    ),
    layer_rules=(
        rename("input_layernorm", "input_layernorm"),
        fuse("attention.qkv", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        rename("attention.dense", "self_attn.o_proj"),
        rename("post_layernorm", "post_attention_layernorm"),
        rename("mlp.fc", "mlp.gate_proj"),
        rename("mlp.gate", "mlp.up_proj"),
        rename("mlp.proj", "mlp.down_proj"),
    ),
    harmless=("model.layers.*.self_attn.rotary_emb.*",),
    settings=lambda arch: _SETTINGS,
    tensorrt_llm="0.5",
)
