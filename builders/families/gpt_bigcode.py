"""GPT-BigCode (StarCoder, SantaCoder): GPT-2 with one KV head for all and weights stored [out, in].

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/gpt/{config,convert}.py, variant starcoder.
"""

from functools import partial

from llmc.arch import ModelArch
from llmc.builders.families import gpt2
from llmc.builders.families.family import Family
from llmc.builders.families.rules import grouped_qkv, rename, reorder
from llmc.builders.families.sizes import read_activation, read_sizes
from llmc.builders.hf.config import HfConfig

_PRECISION = ("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32")
_SERVING = ("inference_runner", "validate_runner_input", "pre_allocate_kv_cache")
_SERVING_SIZES = ("max_batch_size", "max_sequence_length", "pad_key_length")


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    config.expect("scale_attn_weights", True)
    config.expect("add_cross_attention", False)
    for key in (*_PRECISION, *_SERVING, *_SERVING_SIZES):
        config.raw(key)
    sizes = read_sizes(config, **gpt2.NAMES)
    if config.optional(bool, "multi_query", True):
        sizes["num_key_value_heads"] = 1
    return ModelArch(
        **sizes
        | read_activation(config, "activation_function", "gelu_pytorch_tanh")
        | {
            "norm_type": "layer_norm",
            "norm_bias": True,
            "norm_epsilon": config.optional(float, "layer_norm_epsilon", 1e-5),
            "position_embedding_type": "learned_absolute",
            "attn_bias": True,
            "dense_bias": True,
            "mlp_bias": True,
            "mlp_type": "plain",
            "tie_word_embeddings": config.optional(bool, "tie_word_embeddings", True),
        }
    )


FAMILY = Family(
    read_arch=read_arch,
    layer_prefix=gpt2.FAMILY.layer_prefix,
    base_prefix=gpt2.FAMILY.base_prefix,
    rules=gpt2.FAMILY.rules,
    layer_rules=(
        rename("input_layernorm", "ln_1"),
        reorder("attention.qkv", "attn.c_attn", grouped_qkv),
        rename("attention.dense", "attn.c_proj"),
        rename("post_layernorm", "ln_2"),
        rename("mlp.fc", "mlp.c_fc"),
        rename("mlp.proj", "mlp.c_proj"),
    ),
    harmless=gpt2.FAMILY.harmless,
    settings=partial(gpt2.settings, variant="starcoder"),
    left_out=gpt2.LEFT_OUT,
    tensorrt_llm="0.17",
)
