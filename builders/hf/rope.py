"""Rotary embedding settings of a config.json, old form and new.

Until transformers 4: `rope_theta` beside `rope_scaling` {"type" or "rope_type", …}; from 5 on one
object `rope_parameters` {"rope_type", "rope_theta", …}.

Source: huggingface/transformers 5.24 modeling_rope_utils.py, RotaryEmbeddingConfigMixin (which
parameters each type has).
"""

from typing import Any

from llmc.builders.hf.config import HfConfig

_DEFAULT_THETA = 10000.0

_REQUIRED: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}
_OPTIONAL: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": (),
    "dynamic": ("original_max_position_embeddings",),
    "yarn": (
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
        "finetuned",
    ),
    "longrope": ("factor", "original_max_position_embeddings", "attention_factor"),
    "llama3": (),
}
_LISTS = ("short_factor", "long_factor")
_FLAGS = ("truncate", "finetuned")


def read_rope(config: HfConfig, *, rotary_dim: int) -> tuple[float, dict[str, Any] | None]:
    """Return (rotary_base, rotary_scaling): the latter as TensorRT-LLM keeps it, None for none.

    Unknown types and parameters, missing parameters and values of another type become reasons.
    """
    theta = config.maybe(float, "rope_theta")
    scaling = config.maybe(dict[str, Any], "rope_scaling")
    parameters = config.maybe(dict[str, Any], "rope_parameters")
    config.expect("partial_rotary_factor", 1.0)
    key = "rope_scaling"
    if parameters is not None:
        # transformers 5 gives the new object precedence; so do we, unless the two contradict.
        key, scaling = "rope_parameters", dict(parameters)
        inner = scaling.pop("rope_theta", None)
        if inner is not None and not _is_number(inner):
            config.refuse("rope_parameters.rope_theta", inner, "a number")
            inner = None
        if inner is not None and theta is not None and float(inner) != theta:
            config.refuse("rope_theta", theta, f"rope_parameters.rope_theta {inner!r}, or neither")
        theta = float(inner) if inner is not None else theta
        partial = scaling.pop("partial_rotary_factor", 1.0)
        if partial != 1.0:
            config.refuse("rope_parameters.partial_rotary_factor", partial, "1.0")
    if rotary_dim % 2:
        config.refuse("head_dim", rotary_dim, "an even number, for rotary embedding")
    base = _DEFAULT_THETA if theta is None else theta
    if not scaling or not _check_scaling(config, key, scaling, rotary_dim):
        return base, None
    return base, scaling


def _check_scaling(config: HfConfig, key: str, scaling: dict[str, Any], rotary_dim: int) -> bool:
    """Note what is wrong with `scaling`; say whether it changes the plain embedding at all."""
    kinds = [scaling[name] for name in ("rope_type", "type") if scaling.get(name) is not None]
    kind = kinds[0] if kinds else "default"
    if any(other != kind for other in kinds):
        config.refuse(f"{key}.type", kinds[1], f"rope_type {kind!r}, or neither")
    if not isinstance(kind, str) or kind not in _REQUIRED:
        config.refuse(f"{key}.rope_type", kind, f"one of {', '.join(_REQUIRED)}")
        return False
    known = (*_REQUIRED[kind], *_OPTIONAL[kind])
    for name in _REQUIRED[kind]:
        if scaling.get(name) is None:
            config.refuse(f"{key}.{name}", None, f"a value, as rope_type {kind!r} needs it")
    for name, value in scaling.items():
        if name in ("type", "rope_type") or value is None:
            continue
        if name not in known:
            config.refuse(f"{key}.{name}", value, f"no such parameter of rope_type {kind!r}")
        elif name in _LISTS:
            if not isinstance(value, list) or len(value) != rotary_dim // 2:
                config.refuse(f"{key}.{name}", value, f"a list of {rotary_dim // 2} numbers")
        elif name not in _FLAGS and not _is_number(value):
            config.refuse(f"{key}.{name}", value, "a number")
    return kind != "default"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
