"""Cohere's Command R7B and Command A: Command R whose layers slide and rotate, or do neither.

Source: huggingface/transformers 5 modeling_cohere2.py.
"""

from llmc.arch import ModelArch
from llmc.builders.families import cohere, llama
from llmc.builders.families.family import Family
from llmc.builders.families.sizes import read_layer_types, read_window, windows
from llmc.builders.hf.config import HfConfig

_DEFAULT_PATTERN = 4


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    fields = cohere.read_fields(config)
    config.expect("use_qk_norm", False)
    config.expect("order_of_interleaved_layers", "local_attn_first")
    config.expect("rotary_pct", 1.0)
    pattern = config.optional(int, "sliding_window_pattern", _DEFAULT_PATTERN)
    pattern = config.optional(int, "_sliding_window_pattern", pattern)
    num_layers = fields["num_hidden_layers"]
    slides = read_layer_types(config, num_layers, lambda layer: (layer + 1) % pattern != 0)
    window = read_window(config, fields["max_position_embeddings"])
    ropes = tuple("global" if slide else "none" for slide in slides)
    return ModelArch(**fields | windows(window, slides) | {"layer_ropes": ropes})


FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="model.layers.{layer}.",
    rules=llama.RULES,
    layer_rules=cohere.LAYER_RULES,
    harmless=llama.HARMLESS,
    settings=cohere.settings,
    left_out=cohere.LEFT_OUT,
)
