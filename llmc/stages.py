"""Run one stage of a build, or reuse what it made before.

A stage is a directory made from inputs, a part of the recipe and tools; llmc.artifacts says how it
lies on disk. This module decides between running and reusing.
"""

import fcntl
import functools
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

import llmc
from llmc import artifacts
from llmc.errors import BuildError


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """One finished stage. `cached` means that an intact artifact of the same key was there."""

    directory: Path
    manifest: artifacts.Manifest
    cached: bool
    seconds: float


def run_stage(
    final: Path,
    build: Callable[[Path], Mapping[str, JsonValue] | None],
    *,
    stage: str,
    inputs: Mapping[str, str],
    recipe: Mapping[str, JsonValue],
    tools: Mapping[str, str],
    target: Mapping[str, JsonValue] | None = None,
    force: bool = False,
) -> StageResult:
    """Reuse `final` when it is intact and of the same key; else let `build` fill a directory.

    What `build` returns is kept in the manifest as measured.

    `force` runs in any case. The other arguments are those of `artifacts.stage_key`.
    Raises: BuildError when `final` holds something no stage made.
    """
    started = time.monotonic()
    require_replaceable(final)
    key = artifacts.stage_key(stage=stage, inputs=inputs, recipe=recipe, tools=tools, target=target)
    cached = not force and artifacts.reusable(final, key)
    if not cached:
        with artifacts.stage(final) as staging:
            measured = build(staging)
            artifacts.write_manifest(
                staging,
                stage=stage,
                inputs=inputs,
                recipe=recipe,
                tools=tools,
                target=target,
                measured=measured,
            )
    return StageResult(
        directory=final,
        manifest=artifacts.read_manifest(final),
        cached=cached,
        seconds=time.monotonic() - started,
    )


def require_replaceable(final: Path) -> None:
    """Raise BuildError unless `final` is absent, empty or has a manifest: it may be a user's."""
    if final.is_dir() and not final.is_symlink():
        if (final / artifacts.MANIFEST_NAME).is_file() or not any(final.iterdir()):
            return
    elif not final.is_symlink() and not final.exists():
        return
    raise BuildError(
        f"{final}: exists and was not made by llmc ({artifacts.MANIFEST_NAME} is missing)",
        hint="choose another output directory, or move it away",
    )


@functools.cache
def tool_version(*rooms: str) -> str:
    """Return llmc's version and a digest of its shared modules and of `rooms` (packages of llmc).

    The digest makes an edited source tree a different tool: its stages are built again, although
    its version is the same.
    """
    package = Path(llmc.__file__).parent
    sources = list(package.glob("*.py"))
    for room in rooms:
        for root, _, names in os.walk(package / room, followlinks=True):
            sources += [Path(root, name) for name in names if name.endswith((".py", ".cpp", ".h"))]
    digest = hashlib.sha256()
    for path in sorted(sources):
        digest.update(f"{path.relative_to(package)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return f"{llmc.__version__}+{digest.hexdigest()[:12]}"


@contextmanager
def exclusive(directory: Path, *, wait: bool = False) -> Iterator[None]:
    """Create `directory` and hold it against a second build; a lock dies with its process.

    A directory made here in which nothing was left is removed again.
    Raises: BuildError when it cannot be made, or another process holds it (`wait`: waits for that).
    """
    is_new = not directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise BuildError(f"{directory}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise BuildError(f"{directory}: another llmc is building there") from error
        yield
    finally:
        if is_new:
            with suppress(OSError):  # not empty
                directory.rmdir()
        os.close(descriptor)
