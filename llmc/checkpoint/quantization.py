"""The `quantization` object of config.json and, where it differs by module, quant_cfg.json.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/models/modeling_utils.py (QuantConfig,
LayerQuantConfig) and examples/quantization/README.md ("Format of Mixed Precision Checkpoints").
"""

from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any

from llmc.errors import CheckpointError
from llmc.quant import FORMATS
from llmc.quant.format import load_format

MIXED_PRECISION = "MIXED_PRECISION"
"""The quant_algo that says: another one for each module, see quant_cfg.json."""

DEFAULT_EXCLUDE_MODULES = (
    "*lm_head",
    "*router",
    "*vocab_embedding",
    "*position_embedding",
    "*block_embedding",
    "*shared_expert_gate",
)
"""What TensorRT-LLM leaves unquantized when `exclude_modules` is null."""

_NEVER_QUANTIZED = (
    *("*vocab_embedding", "*position_embedding", "*block_embedding"),
    *("*router", "*shared_expert_gate"),
    *("*attention.fused_a", "*attention.q_b_proj", "*attention.kv_b_proj"),
)
_LAYER_KEYS = ("quant_algo", "group_size", "has_zero_point", "pre_quant_scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How weights and KV cache are stored; names and defaults are TensorRT-LLM's.

    `quantized_layers` is for quant_algo MIXED_PRECISION alone: the quantization of each quantized
    module, by global name; what is not there is plain.
    """

    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    group_size: int = 128
    smoothquant_val: float = 0.5
    clamp_val: tuple[float, float] | None = None
    use_meta_recipe: bool = False
    has_zero_point: bool = False
    pre_quant_scale: bool = False
    exclude_modules: tuple[str, ...] | None = None
    quantized_layers: dict[str, "Quantization"] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        quant_algo: str | None,
        kv_cache_quant_algo: str | None = None,
        *,
        group_size: int | None = None,
        exclude_modules: tuple[str, ...] | None = None,
    ) -> "Quantization":
        """Return what TensorRT-LLM's own tools write for these algorithms.

        None keeps their default. Raises: UnsupportedError for an unknown quant_algo.
        """
        chosen: dict[str, Any] = dict(load_format(quant_algo).config) if quant_algo else {}
        if group_size is not None:
            chosen["group_size"] = group_size
        if exclude_modules is not None:
            chosen["exclude_modules"] = exclude_modules
        return cls(quant_algo=quant_algo, kv_cache_quant_algo=kv_cache_quant_algo, **chosen)

    @classmethod
    def mixed(
        cls,
        algos: dict[str, str],
        kv_cache_quant_algo: str | None = None,
        *,
        group_size: int | None = None,
    ) -> "Quantization":
        """Return the quantization of modules by their own quant_algo, as
        {"transformer.layers.0.mlp.fc": "FP8"}; `group_size` is that of the INT4 formats.
        """
        layers = {}
        for module, algo in algos.items():
            fits = group_size in load_format(algo).group_sizes
            made = cls.of(algo, group_size=group_size if fits else None)
            # Modules are named one by one; nothing is left to exclude.
            layers[module] = replace(made, exclude_modules=None, clamp_val=None)
        return cls(
            quant_algo=MIXED_PRECISION,
            kv_cache_quant_algo=kv_cache_quant_algo,
            quantized_layers=layers,
        )

    def of_module(self, module: str) -> "Quantization":
        """Return the quantization of a linear module, as "transformer.layers.0.attention.qkv".

        That of a module left plain has quant_algo None.
        """
        if not self.quantizes(module):
            return Quantization()
        return self.quantized_layers[module] if self.quant_algo == MIXED_PRECISION else self

    def quantizes(self, module: str) -> bool:
        """Say whether a linear module is quantized."""
        if self.quant_algo is None:
            return False
        if self.quant_algo == MIXED_PRECISION:
            return module in self.quantized_layers
        excluded = DEFAULT_EXCLUDE_MODULES if self.exclude_modules is None else self.exclude_modules
        return not any(fnmatchcase(module, pattern) for pattern in (*excluded, *_NEVER_QUANTIZED))

    def to_json(self) -> dict[str, Any]:
        """Return the `quantization` object; with MIXED_PRECISION quant_cfg.json, which has more."""
        data = {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if item.name != "quantized_layers"
        }
        lists = {key: list(value) for key, value in data.items() if isinstance(value, tuple)}
        if self.quant_algo != MIXED_PRECISION:
            return data | lists
        layers = {
            module: {key: getattr(layer, key) for key in _LAYER_KEYS}
            for module, layer in self.quantized_layers.items()
        }
        return data | lists | {"quantized_layers": layers}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Quantization":
        """Read what `to_json` gives; an unknown key is an error, as in TensorRT-LLM."""
        known = {item.name for item in fields(cls)}
        unknown = sorted(data.keys() - known)
        if unknown:
            raise CheckpointError(f"quantization.{unknown[0]}: unknown key")
        algo = data.get("quant_algo")
        if algo not in (None, MIXED_PRECISION, *FORMATS):
            known_algos = ", ".join((*FORMATS, MIXED_PRECISION))
            raise CheckpointError(
                f"quantization.quant_algo: {algo!r}, expected one of {known_algos}"
            )
        lists = {key: tuple(value) for key, value in data.items() if isinstance(value, list)}
        layers = data.get("quantized_layers", {})
        if not isinstance(layers, dict):
            raise CheckpointError(f"quantization.quantized_layers: {layers!r}, expected an object")
        read = {module: cls._layer_from_json(module, layer) for module, layer in layers.items()}
        return cls(**{**data, **lists, "quantized_layers": read})

    @classmethod
    def _layer_from_json(cls, module: str, data: Any) -> "Quantization":
        where = f"quantized_layers.{module}"
        if not isinstance(data, dict) or data.get("quant_algo") not in FORMATS:
            raise CheckpointError(f"{where}: {data!r}, expected an object with a quant_algo")
        return cls.from_json(data)
