"""build.json beside an engine of TensorRT-LLM: what built it and for which GPU.

llmc writes it where it builds, and so does the job for a machine with the GPU.
"""

import json
from pathlib import Path
from typing import Any

from llmc.errors import CheckpointError

STAMP = "build.json"


def read_stamp(engine_dir: Path) -> dict[str, Any]:
    """Return what is known of the engine's build; empty for one that was built otherwise.

    Keys: tensorrt_llm and tensorrt (versions), gpu (its name), compute_capability, and of a job's
    engine job, that job's digest. Raises: CheckpointError for what is no stamp.
    """
    path = engine_dir / STAMP
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}; expected what built the engine") from error
    if not isinstance(found, dict) or not {"tensorrt_llm", "gpu"} <= found.keys():
        raise CheckpointError(f"{path}: {found!r}, expected tensorrt_llm and gpu")
    return found
