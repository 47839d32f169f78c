"""DeepSeek-V2 and V2-Lite: latent attention, and many small experts beside shared ones.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/deepseek_v2/config.py;
huggingface/transformers 5.24 models/deepseek_v2.
"""

from typing import Any

from llmc.arch import ModelArch, MoeArch
from llmc.builders.families import latent, llama
from llmc.builders.families.family import Family
from llmc.builders.families.qwen2_moe import expert_rules
from llmc.builders.families.sizes import Fields, moe_settings
from llmc.builders.hf.config import HfConfig


def read_experts(config: HfConfig, num_layers: int, **routing: Any) -> Fields:
    """Return the field for the experts; `routing` are fields of MoeArch that differ."""
    size = config.count("moe_intermediate_size")
    config.expect("moe_layer_freq", 1)
    dense = config.optional(int, "first_k_dense_replace", 0)
    moe = MoeArch(
        num_experts=config.count("n_routed_experts"),
        top_k=config.count("num_experts_per_tok"),
        intermediate_size=size,
        routed_scaling_factor=config.optional(float, "routed_scaling_factor", 1.0),
        shared_expert_intermediate_size=size * config.optional(int, "n_shared_experts", 0),
        dense_layers=tuple(range(min(dense, num_layers))),
        **routing,
    )
    return {"moe": moe}


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    fields = latent.read_fields(config)
    config.expect("scoring_func", "softmax")
    config.expect("norm_topk_prob", False)
    config.expect("mlp_bias", False)
    method = config.optional(str, "topk_method", "greedy")
    groups = config.optional(int, "n_group", 1), config.optional(int, "topk_group", 1)
    if method == "greedy":
        groups = 1, 1
    elif method != "group_limited_greedy":
        config.refuse("topk_method", method, "greedy or group_limited_greedy")
    experts = read_experts(
        config,
        fields["num_hidden_layers"],
        renormalize=False,
        num_groups=groups[0],
        top_groups=groups[1],
    )
    return ModelArch(**fields | experts)


def settings(arch: ModelArch) -> dict[str, Any]:
    """Return the further keys of TensorRT-LLM's deepseek_v2."""
    mla, moe = arch.mla, arch.moe
    assert mla is not None and moe is not None
    grouped = {
        "device_limited_n_group": moe.num_groups,
        "device_limited_topk_group": moe.top_groups,
        "device_limited_routed_scaling_factor": moe.routed_scaling_factor,
    }
    mode = 4 if moe.renormalize else 3
    return {
        "moe": moe_settings(arch, normalization_mode=mode) | grouped,
        "moe_inter_size": moe.intermediate_size,
        "first_k_dense_replace": len(moe.dense_layers),
        "kv_lora_rank": mla.kv_lora_rank,
        "q_lora_rank": mla.q_lora_rank,
        "qk_nope_head_dim": mla.qk_nope_head_dim,
        "qk_rope_head_dim": mla.qk_rope_head_dim,
        "v_head_dim": mla.v_head_dim,
    }


FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="model.layers.{layer}.",
    rules=llama.RULES,
    layer_rules=llama.NORM_RULES + latent.ATTENTION_RULES + expert_rules("mlp.shared_experts"),
    harmless=llama.HARMLESS,
    settings=settings,
)
