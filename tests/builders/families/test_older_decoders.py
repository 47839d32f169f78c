"""Settings of the older decoders that change the model: read right, or one line naming the setting.

What transformers itself computes is in test_family_logits; here is what it has no model for.
"""

from pathlib import Path
from typing import Any

import pytest

from llmc.arch import ModelArch
from llmc.builders.families.family import load_family
from llmc.builders.hf.config import HfConfig

CONFIGS: dict[str, dict[str, Any]] = {
    "OPTForCausalLM": {"num_hidden_layers": 2, "max_position_embeddings": 64, "ffn_dim": 96},
    "MptForCausalLM": {"d_model": 64, "n_heads": 4, "n_layers": 2},
    "BloomForCausalLM": {"n_embed": 64, "n_layer": 2, "num_attention_heads": 4},
    "FalconForCausalLM": {"num_hidden_layers": 2, "max_position_embeddings": 64},
    "GPTJForCausalLM": {
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "rotary_dim": 8,
    },
    "GPTBigCodeForCausalLM": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "PhiForCausalLM": {"num_hidden_layers": 2, "max_position_embeddings": 64},
}


def read(architecture: str, **changes: Any) -> tuple[ModelArch, list[str]]:
    """Return the architecture and the reasons against it."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4}
    if any(key in CONFIGS[architecture] for key in ("n_embd", "n_embed", "d_model")):
        sizes = {}
    data = {"architectures": [architecture], "vocab_size": 101, **sizes, **CONFIGS[architecture]}
    config = HfConfig(Path("config.json"), data | changes)
    arch = load_family(architecture).arch(config)
    config.question_unread()
    return arch, config.reasons


@pytest.mark.parametrize("architecture", CONFIGS)
def test_the_bare_config_is_read(architecture: str) -> None:
    arch, reasons = read(architecture)
    assert reasons == []
    assert (arch.hidden_size, arch.num_attention_heads, arch.num_hidden_layers) == (64, 4, 2)


@pytest.mark.parametrize(
    ("architecture", "changes", "reason"),
    [
        # OPT-350m.
        ("OPTForCausalLM", {"do_layer_norm_before": False}, "do_layer_norm_before: False"),
        ("OPTForCausalLM", {"word_embed_proj_dim": 32}, "word_embed_proj_dim: 32, expected 64"),
        ("OPTForCausalLM", {"num_key_value_heads": 2}, "num_key_value_heads: 2, expected no such"),
        ("MptForCausalLM", {"attn_config": {"qk_ln": True}}, "attn_config: qk_ln: True"),
        ("MptForCausalLM", {"attn_config": {"alibi": False}}, "attn_config: alibi: False"),
        ("MptForCausalLM", {"attn_config": {"kv_n_heads": 3}}, "attn_config: kv_n_heads: 3"),
        ("MptForCausalLM", {"attn_config": {"new": 1}}, "attn_config: new: 1, expected no such"),
        ("MptForCausalLM", {"no_bias": False}, "no_bias: False, expected True"),
        ("MptForCausalLM", {"logit_scale": 0.5}, "logit_scale: 0.5, expected None"),
        (
            "BloomForCausalLM",
            {"apply_residual_connection_post_layernorm": True},
            "apply_residual_connection_post_layernorm: True",
        ),
        ("FalconForCausalLM", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn: 2"),
        (
            "FalconForCausalLM",
            {"new_decoder_architecture": True, "num_kv_heads": 3},
            "num_kv_heads: 3, expected a divisor of 4 heads",
        ),
        ("GPTJForCausalLM", {"rotary_dim": 18}, "rotary_dim: 18, expected an even number up to 16"),
        ("GPTBigCodeForCausalLM", {"scale_attn_weights": False}, "scale_attn_weights: False"),
        ("PhiForCausalLM", {"qk_layernorm": True}, "qk_layernorm: True, expected False"),
    ],
)
def test_what_has_no_network_is_named(
    architecture: str, changes: dict[str, Any], reason: str
) -> None:
    found = read(architecture, **changes)[1]
    assert any(line.startswith(f"config.json: {reason}") for line in found), found


def test_mpt_shares_kv_heads() -> None:
    """transformers has no such MPT; rows of Wqkv are q, k and v one after another all the same."""
    arch, reasons = read("MptForCausalLM", attn_config={"kv_n_heads": 2, "clip_qkv": 6})
    assert reasons == [] and (arch.num_key_value_heads, arch.clip_qkv) == (2, 6.0)
    shared, _ = read("MptForCausalLM", attn_config={"attn_type": "multiquery_attention"})
    assert shared.num_key_value_heads == 1
