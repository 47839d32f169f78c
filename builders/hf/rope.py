"""Rotary embedding settings of a config.json, old form and new.

Until transformers 4: `rope_theta` beside `rope_scaling` {"type" or "rope_type", …}; from 5 on one
object `rope_parameters` {"rope_type", "rope_theta", …}.

Source: huggingface/transformers 5.24 modeling_rope_utils.py, RotaryEmbeddingConfigMixin (which
parameters each type has).
"""

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """A rotation: its base, the leading columns of a head that turn, and how it is scaled.

    `scaling` is Hugging Face's object, as TensorRT-LLM keeps it; None for none.
    """

    base: float
    dim: int
    scaling: dict[str, Any] | None

    def fields(self) -> dict[str, Any]:
        """Return the fields of ModelArch."""
        return {
            "rotary_base": self.base,
            "rotary_embedding_dim": self.dim,
            "rotary_scaling": self.scaling,
        }


def read_rope(
    config: HfConfig, head_size: int, *, partial: float | None = None, theta: float = _DEFAULT_THETA
) -> Rope:
    """Return the rotation that config.json describes.

    `partial` and `theta` are the share of a head that turns and the base where the file does not
    say; without the first all of a head must turn. Unknown types and parameters, missing parameters
    and values of another type become reasons.
    """
    base = config.maybe(float, "rope_theta")
    scaling = config.maybe(dict[str, Any], "rope_scaling")
    parameters = config.maybe(dict[str, Any], "rope_parameters")
    share_key, share = "partial_rotary_factor", config.raw("partial_rotary_factor")
    original = config.maybe(int, "original_max_position_embeddings")
    key = "rope_scaling"
    if parameters is not None:
        # transformers 5 gives the new object precedence; so do we, unless the two contradict.
        key, scaling = "rope_parameters", dict(parameters)
        inner = scaling.pop("rope_theta", None)
        if inner is not None and not _is_number(inner):
            config.refuse("rope_parameters.rope_theta", inner, "a number")
            inner = None
        if inner is not None and base is not None and float(inner) != base:
            config.refuse("rope_theta", base, f"rope_parameters.rope_theta {inner!r}, or neither")
        base = float(inner) if inner is not None else base
        if "partial_rotary_factor" in scaling:
            share_key = "rope_parameters.partial_rotary_factor"
            share = scaling.pop("partial_rotary_factor")
    share = (partial or 1.0) if share is None else share
    if partial is None and share != 1.0:
        config.refuse(share_key, share, "1.0")
        share = 1.0
    elif not _is_number(share) or not 0 < share <= 1:
        config.refuse(share_key, share, "a number above 0 and up to 1")
        share = 1.0
    dim = int(head_size * share)
    if dim % 2:
        config.refuse("head_dim", head_size, "an even number of columns for rotary embedding")
    base = theta if base is None else base
    if scaling and original is not None and _kind(scaling) == "longrope":
        scaling = {"original_max_position_embeddings": original} | scaling
    if not scaling or not _check_scaling(config, key, scaling, dim):
        scaling = None
    return Rope(base=base, dim=dim, scaling=scaling)


def read_layer_ropes(config: HfConfig, head_size: int) -> tuple[Rope, Rope]:
    """Return the rotations of layers that see everything and of those that slide.

    Until transformers 4: rope_theta and rope_scaling, and rope_local_base_freq; from 5 on an object
    for each kind within rope_parameters.
    """
    kinds = config.raw("rope_parameters")
    if not isinstance(kinds, dict) or "full_attention" not in kinds:
        base = config.optional(float, "rope_local_base_freq", _DEFAULT_THETA)
        whole = read_rope(config, head_size, theta=1e6)
        return whole, Rope(base=base, dim=head_size, scaling=None)
    ropes = []
    for kind in ("full_attention", "sliding_attention"):
        part = HfConfig(config.path, {"rope_parameters": kinds.get(kind)})
        part.reasons = config.reasons
        ropes.append(read_rope(part, head_size))
    if ropes[1].scaling is not None:
        config.refuse("rope_parameters.sliding_attention", ropes[1].scaling, "no scaling")
    return ropes[0], ropes[1]


def _kind(scaling: dict[str, Any]) -> Any:
    """Return the type of a scaling by its newer name."""
    kind = next((scaling[key] for key in ("rope_type", "type") if scaling.get(key)), "default")
    return "longrope" if kind == "su" else kind


def _check_scaling(config: HfConfig, key: str, scaling: dict[str, Any], rotary_dim: int) -> bool:
    """Note what is wrong with `scaling`; say whether it changes the plain embedding at all."""
    kinds = [scaling[name] for name in ("rope_type", "type") if scaling.get(name) is not None]
    kind = _kind(scaling)
    if len({*map(str, kinds)}) > 1:
        config.refuse(f"{key}.type", kinds[1], f"rope_type {kinds[0]!r}, or neither")
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
