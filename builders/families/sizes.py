"""Settings that most families have, read under the names most of them use."""

from collections.abc import Callable
from typing import Any

from llmc.arch import ACTIVATIONS, ModelArch
from llmc.builders.hf.config import HfConfig

Fields = dict[str, Any]
"""Fields of ModelArch."""


def read_sizes(config: HfConfig, max_positions: int | None = None, /, **names: str) -> Fields:
    """Return the fields for the sizes of a model.

    `names` gives the settings that are called otherwise: read_sizes(config, hidden_size="n_embd").
    Without an intermediate_size the MLP is four times as wide as the hidden state;
    `max_positions` is for models that need not say.
    """

    def name(key: str) -> str:
        return names.get(key, key)

    assert config.architecture is not None
    hidden_size = config.count(name("hidden_size"))
    num_heads = config.count(name("num_attention_heads"))
    head_size = config.count(name("head_dim"), max(1, hidden_size // num_heads))
    if not config.has(name("head_dim")) and hidden_size % num_heads:
        wanted = f"a multiple of {name('num_attention_heads')} {num_heads}, or head_dim"
        config.refuse(name("hidden_size"), hidden_size, wanted)
    num_kv_heads = config.count(name("num_key_value_heads"), num_heads)
    if num_heads % num_kv_heads:
        wanted = f"a divisor of {name('num_attention_heads')} {num_heads}"
        config.refuse(name("num_key_value_heads"), num_kv_heads, wanted)
    return {
        "architecture": config.architecture,
        "hidden_size": hidden_size,
        "num_hidden_layers": config.count(name("num_hidden_layers")),
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_size": head_size,
        "intermediate_size": config.count(name("intermediate_size"), 4 * hidden_size),
        "vocab_size": config.count("vocab_size"),
        "max_position_embeddings": config.count(name("max_position_embeddings"), max_positions),
        "rotary_embedding_dim": head_size,
    }


def read_activation(config: HfConfig, key: str = "hidden_act", default: str = "silu") -> Fields:
    """Return the fields for the activation of the MLP."""
    act = config.optional(str, key, default)
    if act not in ACTIVATIONS:
        config.refuse(key, act, f"one of {', '.join(ACTIVATIONS)}")
    return {"hidden_act": act, "activation": ACTIVATIONS.get(act, act)}


def read_window(config: HfConfig, max_positions: int) -> int | None:
    """Return the sliding window; one that no sequence can outgrow is none."""
    window = config.maybe_count("sliding_window")
    return window if window is not None and window < max_positions else None


def read_layer_types(
    config: HfConfig, num_layers: int, slides: Callable[[int], bool]
) -> tuple[bool, ...]:
    """Return which layers attend within a window.

    `layer_types` says so; files older than it follow the rule `slides`.
    """
    types = config.raw("layer_types")
    if types is None:
        return tuple(slides(layer) for layer in range(num_layers))
    known = {"sliding_attention": True, "full_attention": False}
    if not isinstance(types, list) or len(types) != num_layers or {*types} - known.keys():
        config.refuse("layer_types", types, f"{num_layers} of {' and '.join(known)}")
        return (False,) * num_layers
    return tuple(known[kind] for kind in types)


def windows(window: int | None, slides: tuple[bool, ...]) -> Fields:
    """Return the fields for a window in those layers that slide."""
    if window is None or not any(slides):
        return {}
    if all(slides):
        return {"sliding_window": window}
    return {"layer_windows": tuple(window if slide else None for slide in slides)}


def moe_settings(arch: ModelArch, normalization_mode: int | None) -> dict[str, Any]:
    """Return TensorRT-LLM's "moe" object. Source: 0.17 tensorrt_llm/layers/moe.py, MoeConfig."""
    moe = arch.moe
    return {
        "num_experts": 0 if moe is None else moe.num_experts,
        "shared_expert_intermediate_size": (
            0 if moe is None else moe.shared_expert_intermediate_size
        ),
        "top_k": 0 if moe is None else moe.top_k,
        "normalization_mode": normalization_mode,
        "sparse_mixer_epsilon": 0.01,
        "tp_mode": 0,
        "device_limited_n_group": 0,
        "device_limited_topk_group": 0,
        "device_limited_routed_scaling_factor": 1.0,
    }
