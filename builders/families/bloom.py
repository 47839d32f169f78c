"""BLOOM: ALiBi, a norm behind the embedding, biases everywhere.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/bloom/{config,convert}.py.
"""

from llmc.arch import ModelArch
from llmc.builders.families.early import EARLY
from llmc.builders.families.family import Family
from llmc.builders.families.rules import interleaved_qkv, rename, reorder
from llmc.builders.families.sizes import read_sizes
from llmc.builders.hf.config import HfConfig

_ALIASES = {
    "hidden_size": "n_embed",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "seq_length",
}
_TRAINING = (
    *("attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "n_inner"),
    *("offset_alibi", "skip_bias_add", "skip_bias_add_qkv", "slow_but_exact"),
)


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    config.expect("apply_residual_connection_post_layernorm", False)
    for key in _TRAINING:
        config.raw(key)
    names = {key: alias for key, alias in _ALIASES.items() if config.has(alias)}
    names["num_key_value_heads"] = names.get("num_attention_heads", "num_attention_heads")
    return ModelArch(
        # ALiBi sets no limit; this is what the model was trained for.
        **read_sizes(config, 2048, **names)
        | {
            "hidden_act": "gelu",
            # BLOOM's own gelu is the approximation.
            "activation": "gelu_tanh",
            "norm_type": "layer_norm",
            "norm_bias": True,
            "norm_epsilon": config.optional(float, "layer_norm_epsilon", 1e-5),
            "position_embedding_type": "alibi",
            "embedding_norm": True,
            "mlp_type": "plain",
            "attn_bias": True,
            "dense_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": config.optional(bool, "tie_word_embeddings", True),
        }
    )


FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="transformer.h.{layer}.",
    base_prefix="transformer.",
    rules=(
        rename("transformer.vocab_embedding", "transformer.word_embeddings"),
        rename("transformer.ln_embed", "transformer.word_embeddings_layernorm"),
        rename("transformer.ln_f", "transformer.ln_f"),
        rename("lm_head", "lm_head"),
    ),
    layer_rules=(
        rename("input_layernorm", "input_layernorm"),
        reorder("attention.qkv", "self_attention.query_key_value", interleaved_qkv),
        rename("attention.dense", "self_attention.dense"),
        rename("post_layernorm", "post_attention_layernorm"),
        rename("mlp.fc", "mlp.dense_h_to_4h"),
        rename("mlp.proj", "mlp.dense_4h_to_h"),
    ),
    left_out=(*EARLY, "max_position_embeddings", "num_key_value_heads"),
    tensorrt_llm="0.17",
)
