"""config.json of a TensorRT-LLM checkpoint, as a typed record and back.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/modeling_utils.py (QuantConfig,
PretrainedConfig); the same keys through 1.2. What TensorRT-LLM has no key for goes into a top-level
object "llmc", which its loader accepts and ignores.
"""

import logging
from dataclasses import dataclass, field, fields
from typing import Any

from llmc.arch import ModelArch
from llmc.checkpoint.quantization import Quantization
from llmc.dtypes import WEIGHT_DTYPES
from llmc.errors import CheckpointError
from llmc.mapping import Mapping
from llmc.quant.format import QuantFormat, load_format, tensor_name
from llmc.quant.layouts import LAYOUTS

log = logging.getLogger(__name__)

_FIXED: dict[str, Any] = {"qk_layernorm": False, "runtime_defaults": None}
"""Common keys with one value this version handles."""

_INFORMATIVE = ("producer", "llmc")
_ARCH_KEYS = (
    *("architecture", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_size", "intermediate_size", "vocab_size"),
    *("max_position_embeddings", "hidden_act", "norm_epsilon", "position_embedding_type"),
    *("rotary_base", "rotary_embedding_dim", "rotary_scaling", "attn_bias", "mlp_bias"),
    "tie_word_embeddings",
)
_REQUIRED = (
    "architecture",
    "dtype",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Everything config.json says: architecture, split, and how numbers are stored.

    `layout` names the GPU generation that weight-only weights are permuted for (llmc.quant.layouts;
    None: they are not, or nobody wrote it down). TensorRT-LLM does not record it, so it is kept in
    the "llmc" object; and so is what a quantization differing by module keeps in quant_cfg.json.
    """

    arch: ModelArch
    dtype: str
    mapping: Mapping = field(default_factory=Mapping)
    quantization: Quantization = field(default_factory=Quantization)
    logits_dtype: str = "float32"
    use_parallel_embedding: bool = False
    embedding_sharding_dim: int = 0
    layout: str | None = None

    def stored_format(self, module: str) -> QuantFormat | None:
        """Return the format of a linear module's tensors in the rank files, None when plain.

        Without a layout, W8A16 and W4A16 keep plain weights, which the target quantizes at build.
        """
        algo = self.quantization.of_module(module).quant_algo
        if algo is None:
            return None
        form = load_format(algo)
        return None if form.in_checkpoint == "plain" and self.layout is None else form

    def linear_tensors(self, module: str) -> dict[str, str]:
        """Return the names of a linear module's tensors but its bias, by role."""
        form = self.stored_format(module)
        if form is None:
            return {"weight": f"{module}.weight"}
        return {tensor.role: tensor_name(tensor, module) for tensor in form.tensors_of(module)}

    @property
    def padded_vocab_size(self) -> int:
        """vocab_size rounded up to a multiple of tp_size; lm_head rows past the end are zero."""
        return -(-self.arch.vocab_size // self.mapping.tp_size) * self.mapping.tp_size

    @property
    def num_rank_files(self) -> int:
        """tp_size * pp_size: context-parallel ranks share a file."""
        return self.mapping.tp_size * self.mapping.pp_size

    def to_json(self) -> dict[str, Any]:
        """Return the object TensorRT-LLM writes for this model, key for key."""
        data: dict[str, Any] = {key: getattr(self.arch, key) for key in _ARCH_KEYS}
        data |= self.arch.family_settings
        data |= _FIXED
        data |= {
            "dtype": self.dtype,
            "logits_dtype": self.logits_dtype,
            "use_parallel_embedding": self.use_parallel_embedding,
            "embedding_sharding_dim": self.embedding_sharding_dim,
            "mapping": self.mapping.to_json(),
        }
        quantization = self.quantization.to_json()
        own = {
            "sliding_window": self.arch.sliding_window,
            "layout": self.layout,
            "quantized_layers": quantization.pop("quantized_layers", None),
        }
        data["quantization"] = quantization
        if any(value is not None for value in own.values()):
            data["llmc"] = {key: value for key, value in own.items() if value is not None}
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "CheckpointConfig":
        """Read config.json, with TensorRT-LLM's defaults for absent keys.

        Keys that are not common to all architectures land in `arch.family_settings`; whether a
        family handles their values is for the builder to say.
        Raises: CheckpointError naming the key.
        """
        for key in _REQUIRED:
            if key not in data:
                raise CheckpointError(f"{key}: missing")
        for key, value in _FIXED.items():
            if data.get(key, value) != value:
                raise CheckpointError(f"{key}: {data[key]!r}, expected {value!r}")
        dtype = _typed(data, "dtype", str)
        if dtype not in WEIGHT_DTYPES:
            raise CheckpointError(f"dtype: {dtype!r}, expected one of {', '.join(WEIGHT_DTYPES)}")
        sharding_dim = _typed(data, "embedding_sharding_dim", int, 0)
        if sharding_dim not in (0, 1):
            raise CheckpointError(f"embedding_sharding_dim: {sharding_dim}, expected 0 or 1")
        layout = _typed(_typed(data, "llmc", dict, {}), "layout", (str, type(None)))
        if layout is not None and layout not in LAYOUTS:
            raise CheckpointError(f"layout: {layout!r}, expected one of {', '.join(LAYOUTS)}")
        return cls(
            arch=_read_arch(data),
            dtype=dtype,
            mapping=Mapping.from_json(_typed(data, "mapping", dict, {})),
            quantization=_read_quantization(data),
            logits_dtype=_typed(data, "logits_dtype", str, "float32"),
            use_parallel_embedding=_typed(data, "use_parallel_embedding", bool, False),
            embedding_sharding_dim=sharding_dim,
            layout=layout,
        )


def _read_quantization(data: dict[str, Any]) -> Quantization:
    own = _typed(data, "llmc", dict, {})
    layers = _typed(own, "quantized_layers", (dict, type(None)))
    extra = {} if layers is None else {"quantized_layers": layers}
    return Quantization.from_json(_typed(data, "quantization", dict, {}) | extra)


def _read_arch(data: dict[str, Any]) -> ModelArch:
    hidden, heads = _count(data, "hidden_size"), _count(data, "num_attention_heads")
    head_size = _count(data, "head_size", hidden // heads)
    own = (*_ARCH_KEYS, *_FIXED, *_INFORMATIVE, *(item.name for item in fields(CheckpointConfig)))
    extras = _typed(data, "llmc", dict, {})
    return ModelArch(
        architecture=_typed(data, "architecture", str),
        hidden_size=hidden,
        num_hidden_layers=_count(data, "num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=_count(data, "num_key_value_heads", heads),
        head_size=head_size,
        intermediate_size=_count(data, "intermediate_size", 4 * hidden),
        vocab_size=_count(data, "vocab_size"),
        max_position_embeddings=_count(data, "max_position_embeddings"),
        hidden_act=_typed(data, "hidden_act", str, "silu"),
        norm_epsilon=_number(data, "norm_epsilon", 1e-5),
        position_embedding_type=_typed(data, "position_embedding_type", str, "learned_absolute"),
        rotary_base=_number(data, "rotary_base", 10000.0),
        rotary_embedding_dim=_count(data, "rotary_embedding_dim", head_size),
        rotary_scaling=_typed(data, "rotary_scaling", (dict, type(None)), None),
        attn_bias=_typed(data, "attn_bias", bool, False),
        mlp_bias=_typed(data, "mlp_bias", bool, False),
        tie_word_embeddings=_typed(data, "tie_word_embeddings", bool, False),
        sliding_window=_typed(extras, "sliding_window", (int, type(None)), None),
        family_settings={key: value for key, value in data.items() if key not in own},
    )


def _typed(
    data: dict[str, Any], key: str, kind: type | tuple[type, ...], default: Any = None
) -> Any:
    value = data.get(key, default)
    # bool is an int to Python; a flag where a number belongs is a mistake all the same.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        names = [item.__name__ for item in (kind if isinstance(kind, tuple) else (kind,))]
        raise CheckpointError(f"{key}: {value!r}, expected {' or '.join(names)}")
    return value


def _count(data: dict[str, Any], key: str, default: int | None = None) -> int:
    value: int = _typed(data, key, int, default)
    if value < 1:
        raise CheckpointError(f"{key}: {value}, expected at least 1")
    return value


def _number(data: dict[str, Any], key: str, default: float) -> float:
    return float(_typed(data, key, (int, float), default))
