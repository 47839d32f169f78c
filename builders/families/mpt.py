"""MPT: ALiBi, norms and products without bias, q, k and v clamped where the model says so.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/mpt/{config,convert}.py; mosaicml/llm-foundry
(kv_n_heads, which transformers does not know).
"""

from pathlib import Path
from typing import Any

from llmc.arch import ModelArch
from llmc.builders.families.early import EARLY
from llmc.builders.families.family import Family
from llmc.builders.families.rules import rename
from llmc.builders.families.sizes import Fields, read_sizes
from llmc.builders.hf.config import HfConfig

NAMES = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_seq_len",
    "num_key_value_heads": "n_heads",
}
_TRAINING = (
    *("embedding_fraction", "init_config", "init_device", "learned_pos_emb", "loss_fn"),
    *("norm_type", "use_pad_tok_in_ffn", "verbose"),
)


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    config.expect("no_bias", True)
    config.expect("logit_scale", None)
    for key in _TRAINING:
        config.raw(key)
    sizes = read_sizes(config, 2048, **NAMES)
    ratio = config.optional(int, "expansion_ratio", 4)
    return ModelArch(
        **sizes
        | _attention(config, sizes["num_attention_heads"])
        | {
            "intermediate_size": ratio * sizes["hidden_size"],
            "hidden_act": "gelu",
            "activation": "gelu",
            "norm_type": "layer_norm",
            "norm_epsilon": config.optional(float, "layer_norm_epsilon", 1e-5),
            "position_embedding_type": "alibi",
            "mlp_type": "plain",
            "tie_word_embeddings": config.optional(bool, "tie_word_embeddings", True),
        }
    )


def _attention(config: HfConfig, num_heads: int) -> Fields:
    own = config.object("attn_config") or HfConfig(Path("config.json: attn_config"), {})
    for key, wanted in (
        *(("alibi", True), ("alibi_bias_max", 8), ("prefix_lm", False), ("qk_ln", False)),
        *(("qk_gn", False), ("rope", False), ("sliding_window_size", -1)),
    ):
        own.expect(key, wanted)
    for key in ("attn_impl", "attn_pdrop", "attn_type", "attn_uses_sequence_id"):
        own.raw(key)
    clip, scale = own.maybe(float, "clip_qkv"), own.maybe(float, "softmax_scale")
    num_kv_heads = own.count("kv_n_heads", num_heads)
    if own.raw("attn_type") == "multiquery_attention":
        num_kv_heads = 1
    if num_heads % num_kv_heads:
        own.refuse("kv_n_heads", num_kv_heads, f"a divisor of {num_heads} heads")
    own.question_unread()
    return {
        "num_key_value_heads": num_kv_heads,
        "clip_qkv": clip,
        "attention_scale": scale,
    }


def settings(arch: ModelArch) -> dict[str, Any]:
    """Return the further keys of TensorRT-LLM's mpt."""
    return {"alibi_bias_max": 8, "bias": False, "clip_qkv": arch.clip_qkv}


FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="transformer.blocks.{layer}.",
    base_prefix="transformer.",
    rules=(
        rename("transformer.vocab_embedding", "transformer.wte"),
        rename("transformer.ln_f", "transformer.norm_f"),
        rename("lm_head", "lm_head"),
    ),
    layer_rules=(
        rename("input_layernorm", "norm_1"),
        rename("attention.qkv", "attn.Wqkv"),
        rename("attention.dense", "attn.out_proj"),
        rename("post_layernorm", "norm_2"),
        rename("mlp.fc", "ffn.up_proj"),
        rename("mlp.proj", "ffn.down_proj"),
    ),
    settings=settings,
    left_out=(*EARLY, "max_position_embeddings", "norm_epsilon"),
    tensorrt_llm="1.0",
)
