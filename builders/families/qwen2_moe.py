"""Qwen 2 MoE: Qwen 2 with experts, and one that every token goes to behind a gate of its own.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/qwen/{config,convert}.py; huggingface/
transformers 5.24 models/qwen2_moe and conversion_mapping.py (experts that are stacked already).
"""

from functools import partial

from llmc.arch import ModelArch, MoeArch
from llmc.builders.families import llama, qwen2
from llmc.builders.families.family import Family
from llmc.builders.families.rules import (
    Rule,
    fuse,
    rename,
    stacked,
    swapped_halves_of_experts,
)
from llmc.builders.families.sizes import Fields
from llmc.builders.hf.config import HfConfig


def read_experts(config: HfConfig, fields: Fields, *, shared_expert: bool) -> Fields:
    """Return the fields for the experts, and for layers that have none."""
    config.maybe(float, "router_aux_loss_coef")
    sparse_step = config.count("decoder_sparse_step", 1)
    plain = config.raw("mlp_only_layers") or []
    layers = range(fields["num_hidden_layers"])
    shared = config.count("shared_expert_intermediate_size") if shared_expert else 0
    moe = MoeArch(
        # transformers 5 has another name for the same.
        num_experts=config.count(
            "num_local_experts" if config.has("num_local_experts") else "num_experts"
        ),
        top_k=config.count("num_experts_per_tok"),
        intermediate_size=config.count("moe_intermediate_size"),
        renormalize=config.optional(bool, "norm_topk_prob", False),
        shared_expert_intermediate_size=shared,
        shared_expert_gate=shared_expert,
        dense_layers=tuple(i for i in layers if i in plain or (i + 1) % sparse_step),
    )
    return {"moe": moe, "hidden_act": "swiglu"}


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    fields = qwen2.read_fields(config)
    bias = config.optional(bool, "qkv_bias", True)
    return ModelArch(
        **fields | read_experts(config, fields, shared_expert=True) | {"attn_bias": bias}
    )


def expert_rules(shared: str = "mlp.shared_expert") -> tuple[Rule, ...]:
    """Return the rules for experts, apart or stacked, one shared by all, and dense layers."""
    expert = "mlp.experts.{expert}"
    return (
        rename("mlp.router", "mlp.gate"),
        fuse("mlp.fc", f"{expert}.up_proj", f"{expert}.gate_proj"),
        fuse("mlp.proj", f"{expert}.down_proj"),
        stacked("mlp.fc.weight", "mlp.experts.gate_up_proj", swapped_halves_of_experts),
        stacked("mlp.proj.weight", "mlp.experts.down_proj"),
        fuse("mlp.shared_expert.fc", f"{shared}.up_proj", f"{shared}.gate_proj"),
        rename("mlp.shared_expert.proj", f"{shared}.down_proj"),
        rename("mlp.shared_expert_gate", "mlp.shared_expert_gate"),
        *llama.MLP_RULES,
    )


FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="model.layers.{layer}.",
    rules=llama.RULES,
    layer_rules=llama.NORM_RULES + llama.ATTENTION_RULES + expert_rules(),
    harmless=llama.HARMLESS,
    settings=partial(qwen2.settings, qwen_type="qwen2_moe"),
    tensorrt_llm="0.17",
)
