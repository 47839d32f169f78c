"""Takes over an engine that the job written for it built elsewhere; gate and repository follow.

The job stamps what it builds with a digest of itself and of the checkpoint it was made for. An
engine whose stamp is that of the job beside it becomes the stage's result, as if built here.
"""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmc import artifacts
from llmc.engine_stamp import STAMP, read_stamp
from llmc.errors import CheckpointError
from llmc.stages import StageResult

log = logging.getLogger(__name__)


def is_adoptable(engine_dir: Path) -> bool:
    """Say whether a job's engine lies there that no build has taken over yet."""
    has_manifest = (engine_dir / artifacts.MANIFEST_NAME).is_file()
    return (engine_dir / STAMP).is_file() and not has_manifest


def adopt(
    engine_dir: Path,
    job_id: str,
    *,
    inputs: Mapping[str, str],
    recipe: Mapping[str, Any],
    tools: Mapping[str, str],
    target: Mapping[str, Any],
) -> StageResult | None:
    """Return the engine as a finished stage; None when there is none of the job `job_id`.

    Raises: CheckpointError for a stamp that cannot be read, or an engine that was changed since.
    """
    started = time.monotonic()
    stamp = read_stamp(engine_dir)
    if not stamp:
        return None
    if stamp.get("job") != job_id:
        log.warning("%s: built by another job than the one that is wanted now", engine_dir)
        return None
    parts: dict[str, Any] = {
        "stage": "engine",
        "inputs": dict(inputs),
        "recipe": dict(recipe),
        "tools": {**tools, "tensorrt_llm": str(stamp["tensorrt_llm"]), "gpu": str(stamp["gpu"])},
        "target": dict(target),
    }
    is_new = is_adoptable(engine_dir)
    if is_new:
        manifest = artifacts.write_manifest(engine_dir, **parts, measured=stamp)
    else:
        manifest = artifacts.read_manifest(engine_dir)
        damage = artifacts.verify(engine_dir, manifest)
        if damage:
            lines = [f"{engine_dir}: not as the job built it", *damage]
            raise CheckpointError("\n  - ".join(lines), hint="run the job again")
        manifest = manifest.model_copy(update={**parts, "key": artifacts.stage_key(**parts)})
        text = manifest.model_dump_json(indent=2) + "\n"
        (engine_dir / artifacts.MANIFEST_NAME).write_text(text, encoding="utf-8")
    return StageResult(
        directory=engine_dir,
        manifest=manifest,
        cached=not is_new,
        seconds=time.monotonic() - started,
    )
