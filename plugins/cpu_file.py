"""rank<N>.engine on disk: 64-byte aligned tensors in kernel layout, then a JSON header.

Layout: magic (8 bytes), header offset, header length, CRC-32 of the header (little-endian uint64
each), tensor data, header. The header comes last so that tensors stream out as they are packed.
Nothing here depends on the CPU that reads it; the layout version does on plugins/csrc/panel.h.
"""

import json
import os
import struct
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.dtypes import dtype_name
from llmc.errors import CheckpointError
from llmc.plugins.cpu_program import Program

MAGIC = b"llmc-cpu"
LAYOUT_VERSION = 3
ALIGNMENT = 64
_PREFIX = struct.Struct("<8sQQQ")
_DATA_START = 4096
"""Data starts on a page, so that a mapped tensor's alignment is the file's."""
_REBUILD = "build the engine again with `llmc build`"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Where a tensor lies in the file. One that is not resident is mapped, not copied, on load."""

    offset: int
    num_bytes: int
    dtype: str
    shape: tuple[int, ...]
    resident: bool


class EngineFileWriter:
    """Write an engine file tensor by tensor; `finish` makes it complete."""

    def __init__(self, path: Path) -> None:
        self.tensors: dict[str, StoredTensor] = {}
        self._file = path.open("xb")
        self._end = _DATA_START

    def write(self, name: str, array: npt.NDArray[Any], *, resident: bool) -> None:
        self._append(name, [array], array.shape, resident=resident)

    def write_parts(self, name: str, count: int, parts: Iterable[npt.NDArray[Any]]) -> None:
        """Write a resident tensor [count, ...] from its parts, each as it comes."""
        self._append(name, parts, None, resident=True)
        stored = self.tensors[name]
        assert stored.shape[0] == count, (name, stored.shape, count)

    def _append(
        self,
        name: str,
        parts: Iterable[npt.NDArray[Any]],
        shape: tuple[int, ...] | None,
        *,
        resident: bool,
    ) -> None:
        """`shape` None: the parts are stacked on a new first axis."""
        assert name not in self.tensors, name
        num_bytes = count = 0
        part = np.empty(0, np.uint8)
        self._file.seek(self._end)
        for part in parts:
            flat = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
            self._file.write(flat.data)
            num_bytes, count = num_bytes + flat.nbytes, count + 1
        self.tensors[name] = StoredTensor(
            offset=self._end,
            num_bytes=num_bytes,
            dtype=dtype_name(part.dtype),
            shape=(count, *part.shape) if shape is None else shape,
            resident=resident,
        )
        self._end += -(-num_bytes // ALIGNMENT) * ALIGNMENT

    def finish(self, program: Program, *, rank: int, build: str | None = None) -> None:
        """Write the header and flush everything to disk; `build` is the same for all ranks."""
        data = {
            "layout_version": LAYOUT_VERSION,
            "rank": rank,
            "build": build,
            "program": program.to_json(),
            "tensors": {name: asdict(tensor) for name, tensor in self.tensors.items()},
        }
        header = json.dumps(data, separators=(",", ":")).encode()
        self._file.seek(self._end)
        self._file.write(header)
        self._file.seek(0)
        self._file.write(_PREFIX.pack(MAGIC, self._end, len(header), zlib.crc32(header)))
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> "EngineFileWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFile:
    """The header of an engine file, checked against the file's size."""

    path: Path
    rank: int
    build: str | None
    program: Program
    tensors: dict[str, StoredTensor]

    @classmethod
    def open(cls, path: Path) -> "EngineFile":
        """Read and check the header; no tensor is read.

        Raises: CheckpointError for a file that is missing, not ours, short, damaged or of another
        layout version.
        """
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                prefix = file.read(_PREFIX.size)
                if len(prefix) < _PREFIX.size or not prefix.startswith(MAGIC):
                    raise CheckpointError(
                        f"{path}: starts with {prefix[:8]!r}, expected {MAGIC!r}: not a CPU engine",
                        hint=_REBUILD,
                    )
                _, offset, length, checksum = _PREFIX.unpack(prefix)
                if offset + length != size:
                    raise CheckpointError(
                        f"{path}: {size} bytes, expected {offset + length}: cut short or damaged",
                        hint=_REBUILD,
                    )
                file.seek(offset)
                header = file.read(length)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
        if zlib.crc32(header) != checksum:
            raise CheckpointError(f"{path}: its header is damaged (checksum)", hint=_REBUILD)
        return cls._parse(path, json.loads(header), offset)

    @classmethod
    def _parse(cls, path: Path, data: dict[str, Any], data_end: int) -> "EngineFile":
        version = data.get("layout_version")
        if version != LAYOUT_VERSION:
            raise CheckpointError(
                f"{path}: layout version {version}, expected {LAYOUT_VERSION}", hint=_REBUILD
            )
        try:
            tensors = {
                name: StoredTensor(**{**entry, "shape": tuple(entry["shape"])})
                for name, entry in data["tensors"].items()
            }
            program = Program.from_json(data["program"])
            rank = int(data["rank"])
            build = data.get("build")
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: header: {error}", hint=_REBUILD) from error
        for name, tensor in tensors.items():
            if tensor.offset % ALIGNMENT or tensor.offset + tensor.num_bytes > data_end:
                raise CheckpointError(
                    f"{path}: {name}: at bytes {tensor.offset} to"
                    f" {tensor.offset + tensor.num_bytes}, expected aligned and below {data_end}",
                    hint=_REBUILD,
                )
        return cls(path=path, rank=rank, build=build, program=program, tensors=tensors)
