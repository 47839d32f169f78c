"""OPT: learned positions, relu, biases everywhere. The first two rows of positions are padding's.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/opt/{config,convert}.py.
"""

from typing import Any

from llmc.arch import ModelArch
from llmc.builders.families.early import EARLIEST
from llmc.builders.families.family import Family
from llmc.builders.families.rules import Ranges, fuse, rename, reorder
from llmc.builders.families.sizes import read_activation, read_sizes
from llmc.builders.hf.config import HfConfig

_OFFSET = 2
"""Source: transformers 5.24 OPTLearnedPositionalEmbedding."""


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons.

    OPT-350m, whose norms follow the residual and whose embedding is narrower, is refused.
    """
    sizes = read_sizes(
        config, intermediate_size="ffn_dim", num_key_value_heads="num_attention_heads"
    )
    config.expect("do_layer_norm_before", True)
    config.expect("_remove_final_layer_norm", False)
    config.expect("layer_norm_elementwise_affine", True)
    config.expect("word_embed_proj_dim", sizes["hidden_size"])
    for key in ("init_std", "layerdrop", "prefix"):
        config.raw(key)
    bias = config.optional(bool, "enable_bias", True)
    return ModelArch(
        **sizes
        | read_activation(config, "activation_function", "relu")
        | {
            "norm_type": "layer_norm",
            "norm_bias": True,
            "norm_epsilon": 1e-5,
            "position_embedding_type": "learned_absolute",
            "mlp_type": "plain",
            "attn_bias": bias,
            "dense_bias": bias,
            "mlp_bias": bias,
            "tie_word_embeddings": config.optional(bool, "tie_word_embeddings", True),
        }
    )


def _positions(arch: ModelArch) -> Ranges:
    return ((_OFFSET, _OFFSET + arch.max_position_embeddings),)


def settings(arch: ModelArch) -> dict[str, Any]:
    """Return the further keys of TensorRT-LLM's opt."""
    return {"do_layer_norm_before": True}


FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="model.decoder.layers.{layer}.",
    base_prefix="model.",
    rules=(
        rename("transformer.vocab_embedding", "model.decoder.embed_tokens"),
        reorder("transformer.position_embedding", "model.decoder.embed_positions", _positions),
        rename("transformer.ln_f", "model.decoder.final_layer_norm"),
        rename("lm_head", "lm_head"),
    ),
    layer_rules=(
        rename("input_layernorm", "self_attn_layer_norm"),
        fuse("attention.qkv", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        rename("attention.dense", "self_attn.out_proj"),
        rename("post_layernorm", "final_layer_norm"),
        rename("mlp.fc", "fc1"),
        rename("mlp.proj", "fc2"),
    ),
    settings=settings,
    left_out=EARLIEST,
    tensorrt_llm="0.17",
)
