"""ModelArch as keys of config.json, and back.

TensorRT-LLM's keys are written where it has them. What a reader of those alone would not find out
goes into the top-level object "llmc", under "arch": its loader accepts and ignores that.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/modeling_utils.py (PretrainedConfig).
"""

from dataclasses import asdict, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from llmc.arch import ACTIVATIONS, ModelArch, MoeArch
from llmc.errors import CheckpointError

ARCH_KEYS = (
    *("architecture", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_size", "intermediate_size", "vocab_size"),
    *("max_position_embeddings", "hidden_act", "norm_epsilon", "position_embedding_type"),
    *("rotary_base", "rotary_embedding_dim", "rotary_scaling", "attn_bias", "mlp_bias"),
    "tie_word_embeddings",
)
"""Keys that are fields of ModelArch under the same name."""

_IMPLIED: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {},
    "MistralForCausalLM": {},
    "Qwen2ForCausalLM": {"dense_bias": False},
    "MixtralForCausalLM": {},
    "Qwen2MoeForCausalLM": {"dense_bias": False},
}
"""Architectures of which config.json says all there is, and what their class adds to it."""


def arch_keys(arch: ModelArch) -> dict[str, Any]:
    """Return the keys TensorRT-LLM has for `arch`, the family's own among them."""
    data = {key: getattr(arch, key) for key in ARCH_KEYS if key not in arch.left_out}
    if "qk_layernorm" not in arch.left_out:
        data["qk_layernorm"] = arch.qk_norm is not None
    return data | arch.family_settings


def own_fields(arch: ModelArch, read: ModelArch) -> dict[str, Any] | None:
    """Return the fields in which `arch` is not what was `read` of the keys alone; None for none."""
    found = {}
    for item in fields(arch):
        value = getattr(arch, item.name)
        if value != getattr(read, item.name):
            found[item.name] = _encode(value)
    return found or (None if arch.architecture in _IMPLIED else {})


def read_arch(
    data: dict[str, Any], settings: dict[str, Any], left_out: tuple[str, ...], own: Any
) -> ModelArch:
    """Return the architecture that `data` describes, with TensorRT-LLM's defaults.

    `settings` are the keys that are not common to all architectures, `left_out` the common ones
    that are missing. `own` is "arch" of the "llmc" object.
    Raises: CheckpointError naming the key.
    """
    hidden, heads = count(data, "hidden_size"), count(data, "num_attention_heads")
    head_size = count(data, "head_size", hidden // heads)
    act = typed(data, "hidden_act", str, "silu")
    attn_bias = typed(data, "attn_bias", bool, False)
    found: dict[str, Any] = {
        "architecture": typed(data, "architecture", str),
        "hidden_size": hidden,
        "num_hidden_layers": count(data, "num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": count(data, "num_key_value_heads", heads),
        "head_size": head_size,
        "intermediate_size": count(data, "intermediate_size", 4 * hidden),
        "vocab_size": count(data, "vocab_size"),
        "max_position_embeddings": typed(data, "max_position_embeddings", int, 0),
        "hidden_act": act,
        "activation": ACTIVATIONS.get(act, act),
        "norm_epsilon": _number(data, "norm_epsilon", 1e-5),
        "position_embedding_type": typed(data, "position_embedding_type", str, "learned_absolute"),
        "rotary_base": _number(data, "rotary_base", 10000.0),
        "rotary_embedding_dim": typed(data, "rotary_embedding_dim", int, head_size),
        "rotary_scaling": typed(data, "rotary_scaling", (dict, NoneType)),
        "attn_bias": attn_bias,
        "dense_bias": attn_bias,
        "mlp_bias": typed(data, "mlp_bias", bool, False),
        "qk_norm": "head" if typed(data, "qk_layernorm", bool, False) else None,
        "tie_word_embeddings": typed(data, "tie_word_embeddings", bool, False),
        "moe": _read_moe(settings, data),
        "family_settings": settings,
        "left_out": left_out,
    }
    found |= _IMPLIED.get(found["architecture"], {})
    if own is not None:
        found |= _decode_fields(ModelArch, own, "llmc.arch")
    return ModelArch(**found)


def _read_moe(settings: dict[str, Any], data: dict[str, Any]) -> MoeArch | None:
    """Return what TensorRT-LLM's keys say of experts; None for none.

    Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/layers/moe.py (MoeConfig; its normalization modes
    are 0 none, 1 renormalize) and models/qwen (whose shared expert has a gate).
    """
    moe = typed(settings, "moe", dict, {})
    if not typed(moe, "num_experts", int, 0):
        return None
    shared = typed(moe, "shared_expert_intermediate_size", int, 0)
    return MoeArch(
        num_experts=count(moe, "num_experts"),
        top_k=count(moe, "top_k"),
        intermediate_size=count(
            settings, "moe_intermediate_size", count(data, "intermediate_size")
        ),
        renormalize=moe.get("normalization_mode") == 1,
        shared_expert_intermediate_size=shared,
        shared_expert_gate=shared > 0,
    )


def require_whole(arch: ModelArch, own: Any) -> None:
    """Raise CheckpointError when the keys alone do not say what `arch` computes."""
    if own is None and arch.architecture not in _IMPLIED:
        raise CheckpointError(
            f"llmc.arch: missing; {arch.architecture} is more than TensorRT-LLM's keys say",
            hint="convert the Hugging Face model with llmc",
        )
    if arch.max_position_embeddings < 1:
        raise CheckpointError(
            f"max_position_embeddings: {arch.max_position_embeddings}, expected at least 1"
        )


def _encode(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {key: _encode(item) for key, item in asdict(value).items()}
    return list(value) if isinstance(value, tuple) else value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _decode_fields(kind: type, data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise CheckpointError(f"{where}: {data!r}, expected an object")
    hints = _hints(kind)
    unknown = sorted(data.keys() - hints.keys())
    if unknown:
        raise CheckpointError(f"{where}.{unknown[0]}: unknown key")
    return {key: _decode(hints[key], value, f"{where}.{key}") for key, value in data.items()}


def _decode(hint: Any, value: Any, where: str) -> Any:
    """Return `value` as the annotation `hint` says. Raises: CheckpointError."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is None and NoneType in args:
            return None
        hint = next(arg for arg in args if arg is not NoneType)
        return _decode(hint, value, where)
    if origin is Literal:
        fits = value in args
    elif origin is tuple:
        fits = isinstance(value, list)
        value = tuple(_decode(args[0], item, where) for item in value) if fits else value
    elif isinstance(hint, type) and is_dataclass(hint):
        try:
            return hint(**_decode_fields(hint, value, where))
        except TypeError as error:  # a field without a default is missing
            raise CheckpointError(f"{where}: {error}") from error
    elif hint is float:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        value = float(value) if fits else value
    else:
        # type() and not isinstance(): true is no number here.
        fits = type(value) is (origin or hint)
    if not fits:
        wanted = " or ".join(map(str, args)) if args else hint.__name__
        raise CheckpointError(f"{where}: {value!r}, expected {wanted}")
    return value


def typed(
    data: dict[str, Any], key: str, kind: type | tuple[type, ...], default: Any = None
) -> Any:
    """Return data[key], `default` when absent. Raises: CheckpointError for another type."""
    value = data.get(key, default)
    # bool is an int to Python; a flag where a number belongs is a mistake all the same.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        names = [item.__name__ for item in (kind if isinstance(kind, tuple) else (kind,))]
        raise CheckpointError(f"{key}: {value!r}, expected {' or '.join(names)}")
    return value


def count(data: dict[str, Any], key: str, default: int | None = None) -> int:
    """Return data[key], a number of at least 1. Raises: CheckpointError."""
    value: int = typed(data, key, int, default)
    if value < 1:
        raise CheckpointError(f"{key}: {value}, expected at least 1")
    return value


def _number(data: dict[str, Any], key: str, default: float) -> float:
    return float(typed(data, key, (int, float), default))
