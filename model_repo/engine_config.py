"""What config.json of an engine directory says, of llmc's targets and of TensorRT-LLM.

Source: NVIDIA TensorRT-LLM 0.17 to 1.2, builder.py (EngineConfig), for the layout.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmc.errors import CheckpointError
from llmc.model_repo.parameters import Version, parse_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine; an absent part of its config.json is empty."""

    directory: Path
    version_text: str
    is_ours: bool
    pretrained: dict[str, Any]
    build: dict[str, Any]

    @property
    def version(self) -> Version | None:
        """TensorRT-LLM's version; None for an engine of llmc's, which has none."""
        return None if self.is_ours else parse_version(self.version_text)

    @property
    def plugins(self) -> dict[str, Any]:
        found = self.build.get("plugin_config")
        return found if isinstance(found, dict) else {}

    @property
    def world_size(self) -> int | None:
        """Number of ranks, tp * pp * cp; None when the mapping says nothing."""
        mapping = self.pretrained.get("mapping")
        if not isinstance(mapping, dict):
            return None
        sizes = [mapping.get(f"{axis}_size", 1) for axis in ("tp", "pp", "cp")]
        return math.prod(sizes) if all(isinstance(size, int) for size in sizes) else None


def read_engine(directory: Path) -> Engine:
    """Read an engine's config.json. Raises: CheckpointError when it is none."""
    file = directory / "config.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return Engine(
            directory=directory,
            version_text=str(found.get("version", "")),
            is_ours="llmc" in found,
            pretrained=dict(found["pretrained_config"]),
            build=dict(found["build_config"]),
        )
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{file}: not found, expected an engine directory",
            hint="llmc build MODEL -o OUT writes OUT/engine",
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{file}: {error!r}; expected an engine's pretrained_config and build_config"
        ) from error
