"""StarCoder2: GPT with rotary positions, grouped-query attention and a window.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/gpt/{config,convert}.py, variant starcoder2,
which drops the window; it is kept here.
"""

from functools import partial

from llmc.arch import ModelArch
from llmc.builders.families import gpt2
from llmc.builders.families.early import BIASES
from llmc.builders.families.family import Family
from llmc.builders.families.rules import fuse, rename
from llmc.builders.families.sizes import read_activation, read_sizes, read_window
from llmc.builders.hf.config import HfConfig
from llmc.builders.hf.rope import read_rope


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    config.expect("norm_type", "layer_norm")
    config.expect("mlp_type", "default")
    sizes = read_sizes(config)
    bias = config.optional(bool, "use_bias", True)
    activation = read_activation(config, default="gelu_pytorch_tanh")
    if activation["activation"] == "gelu_tanh":
        activation["hidden_act"] = "gelu"
    return ModelArch(
        **sizes
        | activation
        | read_rope(config, sizes["head_size"]).fields()
        | {
            "norm_type": "layer_norm",
            "norm_bias": True,
            "norm_epsilon": config.optional(float, "norm_epsilon", 1e-5),
            "mlp_type": "plain",
            "attn_bias": bias,
            "dense_bias": bias,
            "mlp_bias": bias,
            "sliding_window": read_window(config, sizes["max_position_embeddings"]),
            "tie_word_embeddings": config.optional(bool, "tie_word_embeddings", True),
        }
    )


FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="model.layers.{layer}.",
    rules=(
        rename("transformer.vocab_embedding", "model.embed_tokens"),
        rename("transformer.ln_f", "model.norm"),
        rename("lm_head", "lm_head"),
    ),
    layer_rules=(
        rename("input_layernorm", "input_layernorm"),
        fuse("attention.qkv", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        rename("attention.dense", "self_attn.o_proj"),
        rename("post_layernorm", "post_attention_layernorm"),
        rename("mlp.fc", "mlp.c_fc"),
        rename("mlp.proj", "mlp.c_proj"),
    ),
    harmless=("model.layers.*.self_attn.rotary_emb.*",),
    settings=partial(gpt2.settings, variant="starcoder2"),
    left_out=BIASES,
    tensorrt_llm="0.17",
)
