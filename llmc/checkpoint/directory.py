"""A checkpoint on disk, checked against what its config.json promises."""

import json
from fnmatch import fnmatchcase
from pathlib import Path

from llmc.checkpoint.config import CheckpointConfig
from llmc.checkpoint.schema import tensor_schema, unsplittable
from llmc.errors import CheckpointError
from llmc.tensors import TensorInfo
from llmc.weights import SafetensorsFile

_NOT_NEEDED = (
    "embed_positions",
    "embed_positions_for_gpt_attention",
    "rotary_inv_freq",
    "*.clamp_val",
)
"""What NVIDIA's converters write and its loader does not require."""

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
    def open(cls, directory: Path) -> "Checkpoint":
        """Read config.json and every rank file's header; no weight is read.

        Raises: CheckpointError listing what is missing, unexpected or of another type or shape.
        """
        config = read_config(directory / "config.json")
        files: list[SafetensorsFile] = []
        reasons: list[str] = []
        for rank in range(config.num_rank_files):
            path = directory / f"rank{rank}.safetensors"
            try:
                files.append(SafetensorsFile.open(path))
            except CheckpointError as error:
                reasons.append(error.message)
                continue
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


def read_config(path: Path) -> CheckpointConfig:
    """Read one config.json. Raises: CheckpointError naming the file and the key."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: a {type(data).__name__}, expected an object")
    try:
        config = CheckpointConfig.from_json(data)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error.message}") from error
    reasons = unsplittable(config)
    if reasons:
        raise CheckpointError("\n  - ".join([f"{path}: mapping does not fit the model", *reasons]))
    return config


def _inventory_reasons(
    path: Path, found: dict[str, TensorInfo], wanted: dict[str, TensorInfo]
) -> list[str]:
    reasons = []
    for name, info in wanted.items():
        if name not in found:
            reasons.append(f"{path.name}: {name}: missing")
        elif (have := found[name]).shape != info.shape:
            reasons.append(f"{path.name}: {name}: shape {have.shape}, expected {info.shape}")
        elif have.dtype != info.dtype:
            reasons.append(f"{path.name}: {name}: dtype {have.dtype}, expected {info.dtype}")
    for name in found.keys() - wanted.keys():
        if not any(fnmatchcase(name, pattern) for pattern in _NOT_NEEDED):
            reasons.append(f"{path.name}: {name}: not a tensor of this model")
    return reasons
