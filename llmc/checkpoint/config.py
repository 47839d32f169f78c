"""config.json of a TensorRT-LLM checkpoint, as a typed record and back.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/modeling_utils.py (QuantConfig,
PretrainedConfig); the same keys through 1.2. What TensorRT-LLM has no key for goes into a top-level
object "llmc", which its loader accepts and ignores.
"""

import logging
from dataclasses import dataclass, field, fields
from typing import Any

from llmc.arch import ModelArch
from llmc.checkpoint.arch_json import (
    ARCH_KEYS,
    arch_keys,
    own_fields,
    read_arch,
    require_whole,
    typed,
)
from llmc.checkpoint.quantization import Quantization
from llmc.dtypes import WEIGHT_DTYPES
from llmc.errors import CheckpointError
from llmc.mapping import Mapping
from llmc.quant.format import QuantFormat, load_format, tensor_name
from llmc.quant.layouts import LAYOUTS

log = logging.getLogger(__name__)

_MAY_BE_LEFT_OUT = {
    "logits_dtype": ("float32",),
    "qk_layernorm": (False, True),
    "runtime_defaults": (None,),
}
"""Common keys beside ARCH_KEYS that some architectures lack → the values that may go unsaid."""

_INFORMATIVE = ("producer", "llmc", "qk_layernorm", "runtime_defaults")
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
        """Return the object TensorRT-LLM writes for this model, key for key, and "llmc"."""
        quantization = self.quantization.to_json()
        own = {
            "layout": self.layout,
            "quantized_layers": quantization.pop("quantized_layers", None),
        }
        data = arch_keys(self.arch) | {
            "dtype": self.dtype,
            "logits_dtype": self.logits_dtype,
            "runtime_defaults": None,
            "use_parallel_embedding": self.use_parallel_embedding,
            "embedding_sharding_dim": self.embedding_sharding_dim,
            "mapping": self.mapping.to_json(),
            "quantization": quantization,
        }
        for key in self.arch.left_out:
            _leave_out(data, key)
        own["arch"] = own_fields(self.arch, _read_arch(data))
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
        if data.get("runtime_defaults") is not None:
            raise CheckpointError(f"runtime_defaults: {data['runtime_defaults']!r}, expected None")
        dtype = typed(data, "dtype", str)
        if dtype not in WEIGHT_DTYPES:
            raise CheckpointError(f"dtype: {dtype!r}, expected one of {', '.join(WEIGHT_DTYPES)}")
        sharding_dim = typed(data, "embedding_sharding_dim", int, 0)
        if sharding_dim not in (0, 1):
            raise CheckpointError(f"embedding_sharding_dim: {sharding_dim}, expected 0 or 1")
        layout = typed(typed(data, "llmc", dict, {}), "layout", (str, type(None)))
        if layout is not None and layout not in LAYOUTS:
            raise CheckpointError(f"layout: {layout!r}, expected one of {', '.join(LAYOUTS)}")
        arch = _read_arch(data)
        require_whole(arch, typed(data, "llmc", dict, {}).get("arch"))
        return cls(
            arch=arch,
            dtype=dtype,
            mapping=Mapping.from_json(typed(data, "mapping", dict, {})),
            quantization=_read_quantization(data),
            logits_dtype=typed(data, "logits_dtype", str, "float32"),
            use_parallel_embedding=typed(data, "use_parallel_embedding", bool, False),
            embedding_sharding_dim=sharding_dim,
            layout=layout,
        )


def _read_quantization(data: dict[str, Any]) -> Quantization:
    own = typed(data, "llmc", dict, {})
    layers = typed(own, "quantized_layers", (dict, type(None)))
    extra = {} if layers is None else {"quantized_layers": layers}
    return Quantization.from_json(typed(data, "quantization", dict, {}) | extra)


def _read_arch(data: dict[str, Any]) -> ModelArch:
    own = typed(typed(data, "llmc", dict, {}), "arch", (dict, type(None)))
    common = (*ARCH_KEYS, *_INFORMATIVE, *(item.name for item in fields(CheckpointConfig)))
    settings = {key: value for key, value in data.items() if key not in common}
    return read_arch(data, settings, _missing_keys(data), own)


def _missing_keys(data: dict[str, Any]) -> tuple[str, ...]:
    """Return the common keys that `data` does not have, sorted."""
    missing = [key for key in (*ARCH_KEYS, *_MAY_BE_LEFT_OUT) if key not in data]
    for key, whole in (("mapping", Mapping()), ("quantization", Quantization())):
        found = typed(data, key, dict, {})
        missing += [f"{key}.{name}" for name in whole.to_json() if name not in found]
    return tuple(sorted(missing))


def _leave_out(data: dict[str, Any], key: str) -> None:
    """Remove one of TensorRT-LLM's common keys, unless that would lose what it says."""
    parent, _, name = key.rpartition(".")
    if not parent:
        if key not in _MAY_BE_LEFT_OUT or data.get(key) in _MAY_BE_LEFT_OUT[key]:
            data.pop(key, None)
        return
    read = {"mapping": Mapping.from_json, "quantization": Quantization.from_json}[parent]
    without = {other: value for other, value in data[parent].items() if other != name}
    if read(without) == read(data[parent]):
        data[parent] = without
