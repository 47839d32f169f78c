"""Mixtral: Mistral with experts in place of the MLP, their scores renormalized.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/llama/{config,convert}.py; huggingface/
transformers 5.24 conversion_mapping.py (the names of experts that are stacked already).
"""

from dataclasses import replace
from typing import Any

from llmc.arch import ModelArch, MoeArch
from llmc.builders.families import llama
from llmc.builders.families.family import Family
from llmc.builders.families.rules import fuse, rename, stacked, swapped_halves_of_experts
from llmc.builders.families.sizes import moe_settings
from llmc.builders.hf.config import HfConfig


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    arch = llama.read_arch(config)
    for training in ("router_aux_loss_coef", "router_jitter_noise"):
        config.maybe(float, training)
    moe = MoeArch(
        num_experts=config.count("num_local_experts"),
        top_k=config.count("num_experts_per_tok"),
        intermediate_size=arch.intermediate_size,
    )
    return replace(arch, hidden_act="swiglu", moe=moe)


def settings(arch: ModelArch) -> dict[str, Any]:
    """Return the further keys of TensorRT-LLM's llama."""
    return llama.settings(arch) | {"moe": moe_settings(arch, normalization_mode=1)}


_EXPERT = "block_sparse_moe.experts.{expert}"

FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="model.layers.{layer}.",
    rules=llama.RULES,
    layer_rules=llama.NORM_RULES
    + llama.ATTENTION_RULES
    + (
        rename("mlp.router", "block_sparse_moe.gate"),
        fuse("mlp.fc", f"{_EXPERT}.w3", f"{_EXPERT}.w1"),
        fuse("mlp.proj", f"{_EXPERT}.w2"),
        rename("mlp.router", "mlp.gate"),
        stacked("mlp.fc.weight", "mlp.experts.gate_up_proj", swapped_halves_of_experts),
        stacked("mlp.proj.weight", "mlp.experts.down_proj"),
    ),
    harmless=llama.HARMLESS,
    settings=settings,
    tensorrt_llm="0.17",
)
