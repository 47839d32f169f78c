"""GPT-BigCode (StarCoder, SantaCoder): GPT-2 with one KV head for all and weights stored [out, in].

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/gpt/{config,convert}.py, variant starcoder.
"""

from functools import partial

from llmc.arch import ModelArch
from llmc.builders.families import gpt2
from llmc.builders.families.family import Family
from llmc.builders.families.rules import grouped_qkv, rename, reorder
from llmc.builders.hf.config import HfConfig

_PRECISION = ("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32")
_SERVING = ("inference_runner", "validate_runner_input", "pre_allocate_kv_cache")
_SERVING_SIZES = ("max_batch_size", "max_sequence_length", "pad_key_length")


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    for key in (*_PRECISION, *_SERVING, *_SERVING_SIZES):
        config.raw(key)
    fields = gpt2.read_fields(config, activation="gelu_pytorch_tanh")
    if config.optional(bool, "multi_query", True):
        fields["num_key_value_heads"] = 1
    return ModelArch(**fields)


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
