"""What a finished stage leaves on disk: an atomic directory with a manifest, reusable by its key.

Owns digests, `manifest.json`, staging directories and the question "is this already built?". Knows
no stage by name; builders/pipeline.py says what goes into a key.
"""

import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from llmc.errors import BuildError, CheckpointError

log = logging.getLogger(__name__)

MANIFEST_NAME = "manifest.json"


class _OnDisk(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileEntry(_OnDisk):
    """One file of an artifact."""

    size_bytes: int = Field(ge=0, description="File size.")
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the content.")


class Manifest(_OnDisk):
    """Where an artifact came from and what it must contain."""

    schema_version: Literal[1] = 1
    stage: str = Field(description="checkpoint, engine or model_repo.")
    key: str = Field(description="Hash of inputs, recipe and tools: equal keys, equal artifacts.")
    inputs: dict[str, str] = Field(description="Digest of each input, by name.")
    recipe: dict[str, JsonValue] = Field(description="The part of the recipe that mattered.")
    tools: dict[str, str] = Field(description="Version of each tool that made it.")
    target: dict[str, JsonValue] | None = Field(
        default=None, description="What the artifact runs on; absent when it does not depend on it."
    )
    measured: dict[str, JsonValue] = Field(
        default_factory=dict, description="What building it took; part of no key."
    )
    files: dict[str, FileEntry] = Field(description="Every file but this one, by relative path.")

    @property
    def content_digest(self) -> str:
        """Digest of the files alone: equal contents are equal inputs to the next stage."""
        return _digest_entries(self.files)

    @property
    def num_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.files.values())


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file's content, read in constant memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_files(files: Mapping[str, Path], workers: int | None = None) -> dict[str, FileEntry]:
    """Digest `files` (name → path) on `workers` threads; hashing releases the interpreter lock."""
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        digests = pool.map(digest_file, files.values())
        return {
            name: FileEntry(size_bytes=path.stat().st_size, sha256=digest)
            for (name, path), digest in zip(files.items(), digests, strict=True)
        }


def digest_tree(directory: Path, files: Iterable[Path] | None = None) -> str:
    """Digest `files` of `directory` (default: all of them) by relative name and content.

    Where the directory lies, timestamps and modes do not count.
    """
    named = _relative(directory, files if files is not None else _walk(directory))
    return _digest_entries(digest_files(named))


def stage_key(
    *,
    stage: str,
    inputs: Mapping[str, str],
    recipe: Mapping[str, JsonValue],
    tools: Mapping[str, str],
    target: Mapping[str, JsonValue] | None = None,
) -> str:
    """Return the name of the one artifact these inputs, this recipe part and these tools make."""
    return _digest_json(
        {
            "stage": stage,
            "inputs": dict(inputs),
            "recipe": dict(recipe),
            "tools": dict(tools),
            "target": None if target is None else dict(target),
        }
    )


@contextmanager
def stage(final: Path) -> Iterator[Path]:
    """Yield an empty sibling of `final`; on success it is flushed and takes `final`'s place.

    On any exception, KeyboardInterrupt and SystemExit included, the sibling is removed and `final`
    stays as it was. Siblings left by killed processes are removed first.
    Raises: BuildError when the disk refuses (full, read-only, no permission).
    """
    _remove_abandoned(final)
    staging = final.with_name(f"{final.name}.tmp-{os.getpid()}")
    old = final.with_name(f"{final.name}.tmp-{os.getpid()}-old")
    try:
        staging.mkdir(parents=True)
        yield staging
        _sync_tree(staging)
        if final.is_symlink() or final.exists():
            final.rename(old)
        staging.rename(final)
        _sync(final.parent)
    except OSError as error:
        if error.errno not in _DISK_ERRNOS:
            raise
        raise BuildError(f"{error.filename or final}: {error.strerror}") from error
    finally:
        if old.exists() and not final.exists():
            old.rename(final)
        for leftover in (staging, old):
            if leftover.exists():
                shutil.rmtree(leftover)


def write_manifest(
    directory: Path,
    *,
    stage: str,
    inputs: Mapping[str, str],
    recipe: Mapping[str, JsonValue],
    tools: Mapping[str, str],
    target: Mapping[str, JsonValue] | None = None,
    measured: Mapping[str, JsonValue] | None = None,
) -> Manifest:
    """Digest every file of `directory` and write its manifest.json."""
    manifest = Manifest(
        stage=stage,
        key=stage_key(stage=stage, inputs=inputs, recipe=recipe, tools=tools, target=target),
        inputs=dict(inputs),
        recipe=dict(recipe),
        tools=dict(tools),
        target=None if target is None else dict(target),
        measured=dict(measured or {}),
        files=digest_files(_relative(directory, _walk(directory))),
    )
    (directory / MANIFEST_NAME).write_text(manifest.model_dump_json(indent=2) + "\n")
    return manifest


def read_manifest(directory: Path) -> Manifest:
    """Read `directory`'s manifest. Raises: CheckpointError when it is missing or malformed."""
    path = directory / MANIFEST_NAME
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path}: missing", hint="not made by `llmc build`, or only half copied"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise CheckpointError(f"{path}: {where}: {first['msg']}") from error


def verify(directory: Path, manifest: Manifest | None = None) -> list[str]:
    """Return what differs between `directory` and its manifest, one line each; empty means intact.

    Sizes first; contents are read only where sizes agree. Files the manifest does not know are
    ignored: later stages put reports beside the engine.
    """
    manifest = manifest or read_manifest(directory)
    found: list[str] = []
    readable: dict[str, Path] = {}
    for name, entry in manifest.files.items():
        path = directory / name
        if not path.is_file():
            found.append(f"{name}: missing")
        elif (size := path.stat().st_size) != entry.size_bytes:
            found.append(f"{name}: {size} bytes, expected {entry.size_bytes}")
        else:
            readable[name] = path
    for name, actual in digest_files(readable).items():
        if actual.sha256 != manifest.files[name].sha256:
            expected = manifest.files[name].sha256[:12]
            found.append(f"{name}: sha256 {actual.sha256[:12]}…, expected {expected}…")
    return found


def reusable(final: Path, key: str) -> bool:
    """Say whether `final` is an intact artifact of `key`; damage is logged and means no."""
    if not (final / MANIFEST_NAME).is_file():
        return False
    try:
        manifest = read_manifest(final)
    except CheckpointError as error:
        log.warning("%s; building again", error)
        return False
    if manifest.key != key:
        return False
    damage = verify(final, manifest)
    for line in damage:
        log.warning("%s: damaged: %s; building again", final, line)
    return not damage


_DISK_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG}


def _walk(directory: Path) -> list[Path]:
    manifest = directory / MANIFEST_NAME
    return sorted(path for path in directory.rglob("*") if path.is_file() and path != manifest)


def _relative(directory: Path, files: Iterable[Path]) -> dict[str, Path]:
    return {path.relative_to(directory).as_posix(): path for path in sorted(files)}


def _digest_entries(entries: Mapping[str, FileEntry]) -> str:
    return _digest_json({name: [e.size_bytes, e.sha256] for name, e in entries.items()})


def _digest_json(value: object) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_tree(directory: Path) -> None:
    for root, _, names in os.walk(directory):
        for name in names:
            if not Path(root, name).is_symlink():
                _sync(Path(root, name))
        _sync(Path(root))


def _remove_abandoned(final: Path) -> None:
    """Remove staging siblings whose process is gone: a killed build must not fill the disk."""
    for sibling in final.parent.glob(f"{final.name}.tmp-*"):
        pid = sibling.name.removeprefix(f"{final.name}.tmp-").removesuffix("-old")
        if pid.isdecimal() and not _is_running(int(pid)):
            log.info("removing %s, left by a killed build", sibling)
            shutil.rmtree(sibling)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
