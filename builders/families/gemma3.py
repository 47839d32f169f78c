"""Gemma 3, the text model: Gemma 2 without soft caps, with norms of q and k and rope by layer.

Layers that slide rotate by a base of their own, without scaling; every sixth one sees everything.
Source: huggingface/transformers 5 modeling_gemma3.py; keys of NVIDIA/TensorRT-LLM 1.x
tensorrt_llm/models/gemma/config.py.
"""

from typing import Any

from llmc.arch import ModelArch
from llmc.builders.families import gemma, gemma2, llama
from llmc.builders.families.family import Family
from llmc.builders.families.rules import add_one
from llmc.builders.families.sizes import read_layer_types, read_window, windows
from llmc.builders.hf.config import HfConfig
from llmc.builders.hf.rope import read_layer_ropes

_DEFAULT_PATTERN = 6


def read_arch(config: HfConfig) -> ModelArch:
    """Return the architecture `config` describes; what cannot be converted becomes its reasons."""
    fields = gemma2.read_fields(config)
    config.expect("use_bidirectional_attention", False)
    pattern = config.optional(int, "sliding_window_pattern", _DEFAULT_PATTERN)
    pattern = config.optional(int, "_sliding_window_pattern", pattern)
    num_layers = fields["num_hidden_layers"]
    slides = read_layer_types(config, num_layers, lambda layer: (layer + 1) % pattern != 0)
    whole, local = read_layer_ropes(config, fields["head_size"])
    return ModelArch(
        **fields
        | windows(read_window(config, fields["max_position_embeddings"]), slides)
        | whole.fields()
        | {
            "qk_norm": "head",
            "rotary_base_local": local.base,
            "layer_ropes": tuple("local" if slide else "global" for slide in slides),
        }
    )


def settings(arch: ModelArch) -> dict[str, Any]:
    """Return the further keys of TensorRT-LLM's gemma3."""
    assert arch.layer_ropes is not None
    ropes = (*arch.layer_ropes, "global")
    return gemma2.settings(arch) | {
        "_sliding_window_pattern": ropes.index("global") + 1,
        "rope_local_base_freq": arch.rotary_base_local,
        "sliding_window": next((size for size in arch.layer_windows or () if size), None),
    }


FAMILY = Family(
    read_arch=read_arch,
    layer_prefix="model.layers.{layer}.",
    rules=gemma.RULES,
    layer_rules=(
        *gemma2.NORM_RULES,
        *llama.ATTENTION_RULES,
        add_one("attention.q_layernorm", "self_attn.q_norm"),
        add_one("attention.k_layernorm", "self_attn.k_norm"),
        *llama.MLP_RULES,
    ),
    harmless=llama.HARMLESS,
    settings=settings,
    left_out=gemma.LEFT_OUT,
    tensorrt_llm="1.0",
)
