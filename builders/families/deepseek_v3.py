"""DeepSeek-V3 and R1: V2 whose experts are scored by sigmoids and chosen with a correction.

Layers that predict further tokens (num_nextn_predict_layers) come after the others and are left
out. Source: huggingface/transformers 5.24 models/deepseek_v3.
"""

from dataclasses import replace

from llmc.arch import ModelArch
from llmc.builders.families import deepseek_v2, latent, llama
from llmc.builders.families.family import Family
from llmc.builders.families.qwen2_moe import expert_rules
from llmc.builders.families.rules import rename
from llmc.builders.hf.config import HfConfig


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    fields = latent.read_fields(config)
    config.expect("scoring_func", "sigmoid")
    config.expect("topk_method", "noaux_tc")
    for key in ("num_nextn_predict_layers", "num_mtp_layers"):
        config.raw(key)
    experts = deepseek_v2.read_experts(
        config,
        fields["num_hidden_layers"],
        scoring="sigmoid",
        renormalize=config.optional(bool, "norm_topk_prob", True),
        score_correction_bias=True,
        num_groups=config.count("n_group", 1),
        top_groups=config.count("topk_group", 1),
        group_score="top2_sum",
    )
    arch = ModelArch(**fields | experts)
    if not config.optional(bool, "rope_interleave", True):
        arch = replace(arch, position_embedding_type="rope_gpt_neox")
    return arch


FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="model.layers.{layer}.",
    rules=llama.RULES,
    layer_rules=llama.NORM_RULES
    + latent.ATTENTION_RULES
    + expert_rules("mlp.shared_experts")
    + (rename("mlp.e_score_correction_bias", "mlp.gate.e_score_correction_bias"),),
    # The one layer after the last of the 61 that released models have.
    harmless=(*llama.HARMLESS, "model.layers.61.*"),
    settings=deepseek_v2.settings,
)
