"""A checkpoint on disk, checked against what its config.json promises."""

import json
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from llmc.checkpoint.config import CheckpointConfig
from llmc.checkpoint.quantization import MIXED_PRECISION, Quantization
from llmc.checkpoint.schema import tensor_schema, unsplittable
from llmc.errors import CheckpointError
from llmc.quant.format import load_format
from llmc.quant.layouts import LAYOUTS
from llmc.tensors import TensorInfo
from llmc.weights import SafetensorsFile

_NOT_NEEDED = (
    "embed_positions",
    "embed_positions_for_gpt_attention",
    "rotary_inv_freq",
    "*.clamp_val",
    "*.attention.k_cache_scaling_factor",
    "*.attention.v_cache_scaling_factor",
)
"""What NVIDIA's converters (and ModelOpt, beside kv_cache_scaling_factor) write and its loader does
not require."""

_MAX_REASONS = 20


class Checkpoint:
    """An opened checkpoint directory. Every rank file's tensors are exactly those of its schema."""

    __slots__ = ("directory", "config", "_files")

    def __init__(
        self, directory: Path, config: CheckpointConfig, files: tuple[SafetensorsFile, ...]
    ) -> None:
        self.directory = directory
        self.config = config
        self._files = files

    @classmethod
    def open(cls, directory: Path, *, layout: str | None = None) -> "Checkpoint":
        """Read config.json and every rank file's header; no weight is read.

        `layout` is that of packed weights where config.json does not say, as NVIDIA's never does.
        Raises: CheckpointError listing what is missing, unexpected or of another type or shape.
        """
        config = read_config(directory / "config.json")
        if layout is not None:
            if config.layout not in (None, layout):
                raise CheckpointError(
                    f"{directory}: layout {layout!r}, but config.json says {config.layout!r}"
                )
            config = replace(config, layout=layout)
        files: list[SafetensorsFile] = []
        reasons: list[str] = []
        for rank in range(config.num_rank_files):
            path = directory / f"rank{rank}.safetensors"
            try:
                files.append(SafetensorsFile.open(path))
            except CheckpointError as error:
                reasons.append(error.message)
                continue
            _require_layout(directory, config, files[-1].infos)
            reasons += _inventory_reasons(path, files[-1].infos, tensor_schema(config, rank))
        if reasons:
            shown = reasons[:_MAX_REASONS]
            if len(reasons) > len(shown):
                shown.append(f"and {len(reasons) - len(shown)} more")
            raise CheckpointError("\n  - ".join([f"{directory}: not a whole checkpoint", *shown]))
        return cls(directory, config, tuple(files))

    def rank(self, rank: int) -> SafetensorsFile:
        """Return the opened rank<rank>.safetensors."""
        return self._files[rank]


def write_config(directory: Path, config: CheckpointConfig) -> None:
    """Write config.json and, where the quantization differs by module, quant_cfg.json."""
    files = {"config.json": config.to_json()}
    if config.quantization.quant_algo == MIXED_PRECISION:
        files["quant_cfg.json"] = config.quantization.to_json()
    for name, data in files.items():
        (directory / name).write_text(json.dumps(data, indent=4) + "\n", encoding="utf-8")


def read_config(path: Path) -> CheckpointConfig:
    """Read one config.json. Raises: CheckpointError naming the file and the key."""
    data = _read_object(path)
    try:
        config = CheckpointConfig.from_json(data)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error.message}") from error
    quantization = config.quantization
    if quantization.quant_algo == MIXED_PRECISION and not quantization.quantized_layers:
        config = replace(config, quantization=_read_layers(path.with_name("quant_cfg.json")))
    reasons = unsplittable(config)
    if reasons:
        raise CheckpointError("\n  - ".join([f"{path}: mapping does not fit the model", *reasons]))
    return config


def _read_layers(path: Path) -> Quantization:
    try:
        return Quantization.from_json(_read_object(path))
    except CheckpointError as error:
        prefix = "" if error.message.startswith(str(path)) else f"{path}: "
        raise CheckpointError(f"{prefix}{error.message}") from error


def _read_object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: a {type(data).__name__}, expected an object")
    return data


def _inventory_reasons(
    path: Path, found: dict[str, TensorInfo], wanted: dict[str, TensorInfo]
) -> list[str]:
    reasons = []
    for name, info in wanted.items():
        if name not in found and _is_needed(name):
            reasons.append(f"{path.name}: {name}: missing")
        elif name not in found:
            continue
        elif (have := found[name]).shape != info.shape:
            reasons.append(f"{path.name}: {name}: shape {have.shape}, expected {info.shape}")
        elif have.dtype != info.dtype:
            reasons.append(f"{path.name}: {name}: dtype {have.dtype}, expected {info.dtype}")
    for name in found.keys() - wanted.keys():
        if _is_needed(name):
            reasons.append(f"{path.name}: {name}: not a tensor of this model")
    return reasons


def _is_needed(name: str) -> bool:
    return not any(fnmatchcase(name, pattern) for pattern in _NOT_NEEDED)


def _require_layout(
    directory: Path, config: CheckpointConfig, found: dict[str, TensorInfo]
) -> None:
    """Refuse weights that are packed for a GPU generation which nothing names."""
    quantization = config.quantization
    mixed = [layer.quant_algo for layer in quantization.quantized_layers.values()]
    algos = sorted({algo for algo in mixed or [quantization.quant_algo] if algo is not None})
    packed = [algo for algo in algos if load_format(algo).needs_layout]
    if config.layout is not None or not packed:
        return
    gptq = any(load_format(algo).in_checkpoint == "quantized" for algo in packed)
    if gptq or any(name.endswith("per_channel_scale") for name in found):
        raise CheckpointError(
            f"{directory}: {packed[0]} weights packed for one GPU generation, and config.json"
            " does not say which",
            hint=f"name the layout they were written for: {', '.join(LAYOUTS)}",
        )
