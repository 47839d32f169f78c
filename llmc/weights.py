"""Safetensors files: checked on opening, read lazily, written as a stream.

Owns the file format and nothing above it: no tensor name means anything here. Tensors are numpy
arrays; bfloat16 and float8 are those of ml_dtypes.

Source: the format description in the README of huggingface/safetensors (8 bytes of little-endian
header length, a JSON header of at most 100 MB, tensor bytes without holes in row-major order).
"""

import json
import mmap
import os
from collections.abc import Sequence
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from llmc.dtypes import SAFETENSORS_CODES, SAFETENSORS_NAMES, dtype_name, numpy_dtype
from llmc.errors import CheckpointError
from llmc.tensors import TensorInfo

_MAX_HEADER_BYTES = 100_000_000
_LENGTH_BYTES = 8
_DATA_ALIGNMENT = 64


class SafetensorsFile:
    """One safetensors file, its header checked against its size; tensors are read on demand."""

    __slots__ = ("path", "infos", "metadata", "_offsets", "_file", "_map")

    def __init__(
        self,
        path: Path,
        file: BinaryIO,
        infos: dict[str, TensorInfo],
        offsets: dict[str, int],
        metadata: dict[str, str],
    ) -> None:
        self.path = path
        self.infos = infos
        self.metadata = metadata
        self._offsets = offsets
        self._file = file
        self._map: mmap.mmap | None = None

    @classmethod
    def open(cls, path: Path) -> "SafetensorsFile":
        """Open `path` and check its header: sizes, element types, offsets in bounds without holes.

        Raises: CheckpointError naming the file and, where one is at fault, the tensor.
        """
        try:
            file = path.open("rb")
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
        try:
            size = os.fstat(file.fileno()).st_size
            header, data_start = _read_header(path, file, size)
            metadata = _metadata(path, header.pop("__metadata__", {}))
            infos, offsets = _read_entries(path, header, data_start, size)
        except BaseException:
            file.close()
            raise
        return cls(path, file, infos, offsets, metadata)

    def read(self, name: str) -> npt.NDArray[Any]:
        """Return tensor `name` as a read-only view into the memory map.

        Pages touched count as resident memory until `release`; one-time reads use `read_rows`.
        """
        info = self.infos[name]
        dtype = numpy_dtype(info.dtype)
        if info.num_bytes == 0:
            return np.empty(info.shape, dtype)
        if self._map is None:
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.ndarray(info.shape, dtype, buffer=self._map, offset=self._offsets[name])

    def read_rows(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows [start, stop) of tensor `name` in memory of their own.

        Threads may call this at the same time. Peak memory is the returned array: bytes come
        through `preadv`, not through the map.
        Raises: CheckpointError when the file ends early (it shrank after opening).
        """
        info = self.infos[name]
        assert info.shape and 0 <= start <= stop <= info.shape[0], (name, start, stop, info.shape)
        rows: npt.NDArray[Any] = np.empty((stop - start, *info.shape[1:]), numpy_dtype(info.dtype))
        self._fill(rows.reshape(-1), name, start * prod(info.shape[1:]))
        return rows

    def read_block(self, name: str, rows: range, columns: range) -> npt.NDArray[Any]:
        """Return [len(rows), len(columns)] of tensor `name`, seen as rows of its last dimension.

        As `read_rows` otherwise: only what is asked for is read.
        """
        info = self.infos[name]
        width = info.shape[-1]
        assert columns.stop <= width and rows.stop * width <= prod(info.shape), (name, rows)
        block: npt.NDArray[Any] = np.empty((len(rows), len(columns)), numpy_dtype(info.dtype))
        if len(columns) == width:
            self._fill(block.reshape(-1), name, rows.start * width)
            return block
        for index, row in enumerate(rows):
            self._fill(block[index], name, row * width + columns.start)
        return block

    def read_numbers(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """Return elements [start, stop) of tensor `name`, whatever its shape, as `read_rows`."""
        info = self.infos[name]
        assert 0 <= start <= stop <= prod(info.shape), (name, start, stop, info.shape)
        numbers: npt.NDArray[Any] = np.empty(stop - start, numpy_dtype(info.dtype))
        self._fill(numbers, name, start)
        return numbers

    def _fill(self, values: npt.NDArray[Any], name: str, first: int) -> None:
        """Read into `values`, contiguous, the elements of tensor `name` from the `first`."""
        view = values.view(np.uint8).data
        position = self._offsets[name] + first * values.itemsize
        while view:
            count = os.preadv(self._file.fileno(), [view], position)
            if count == 0:
                raise CheckpointError(f"{self.path}: {name}: file ends at byte {position}")
            view, position = view[count:], position + count

    def release(self) -> None:
        """Give resident pages of the map back; views stay valid and page in again when touched."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Close the file; views into the map keep the map itself alive."""
        self._file.close()
        self._map = None


class SafetensorsWriter:
    """Write a safetensors file whose tensors arrive in pieces.

    The header is written first, so names, types and shapes are given up front; a tensor's rows may
    arrive in any number of pieces, tensors in any order. Leaving the `with` block by an exception
    removes the file; leaving it normally with bytes missing is a programmer's error.
    """

    def __init__(
        self, path: Path, infos: Sequence[TensorInfo], metadata: dict[str, str] | None = None
    ) -> None:
        self.path = path
        self.infos = {info.name: info for info in infos}
        assert len(self.infos) == len(infos), "duplicate tensor names"
        header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
        self._offsets: dict[str, int] = {}
        end = 0
        for info in infos:
            start, end = end, end + info.num_bytes
            self._offsets[info.name] = start
            header[info.name] = {
                "dtype": SAFETENSORS_CODES[info.dtype],
                "shape": list(info.shape),
                "data_offsets": [start, end],
            }
        text = json.dumps(header, separators=(",", ":")).encode()
        # Trailing spaces are part of the format; they put the data on a cache line.
        text += b" " * (-(_LENGTH_BYTES + len(text)) % _DATA_ALIGNMENT)
        self._data_start = _LENGTH_BYTES + len(text)
        self._missing_bytes = {info.name: info.num_bytes for info in infos}
        self._file = path.open("xb")
        self._file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        self._file.truncate(self._data_start + end)
        self._file.flush()

    def write(self, name: str, array: npt.NDArray[Any]) -> None:
        """Write the whole tensor `name`."""
        assert array.shape == self.infos[name].shape, (name, array.shape, self.infos[name].shape)
        self._put(name, 0, array)

    def write_rows(self, name: str, start: int, rows: npt.NDArray[Any]) -> None:
        """Write `rows` of tensor `name` beginning at row `start`; no row may be written twice.

        Rows are those of the last dimension: of [E, R, C] it has E * R, and `rows` is [n, C]. If
        `rows` is a vector they are the numbers of the tensor.
        """
        shape = self.infos[name].shape
        row_shape = shape[-1:] if rows.ndim > 1 else ()
        num_rows = prod(shape[: len(shape) - len(row_shape)])
        assert rows.shape[1:] == row_shape and start + len(rows) <= num_rows, (name, rows.shape)
        self._put(name, start * prod(row_shape) * rows.itemsize, rows)

    def _put(self, name: str, offset: int, array: npt.NDArray[Any]) -> None:
        assert dtype_name(array.dtype) == self.infos[name].dtype, (name, array.dtype)
        view = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        self._missing_bytes[name] -= len(view)
        assert self._missing_bytes[name] >= 0, f"{name}: more bytes than its shape holds"
        position = self._data_start + self._offsets[name] + offset
        while view:
            count = os.pwrite(self._file.fileno(), view, position)
            view, position = view[count:], position + count

    def __enter__(self) -> "SafetensorsWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if kind is not None:
            self.path.unlink(missing_ok=True)
            return
        incomplete = [name for name, missing in self._missing_bytes.items() if missing]
        assert not incomplete, f"{self.path}: not written: {incomplete}"


def _read_header(path: Path, file: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    if size < _LENGTH_BYTES:
        raise CheckpointError(f"{path}: {size} bytes, too short for a safetensors header")
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if length > _MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{path}: header of {length} bytes, expected at most {_MAX_HEADER_BYTES}"
            " (not a safetensors file?)"
        )
    if _LENGTH_BYTES + length > size:
        wanted = _LENGTH_BYTES + length
        raise CheckpointError(f"{path}: truncated in its header: {size} bytes, expected {wanted}")
    try:
        header = json.loads(file.read(length), object_pairs_hook=lambda pairs: _unique(path, pairs))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: header is a {type(header).__name__}, expected an object")
    return header, _LENGTH_BYTES + length


def _unique(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for name, value in pairs:
        if name in entries:
            raise CheckpointError(f"{path}: {name}: twice in the header")
        entries[name] = value
    return entries


def _metadata(path: Path, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise CheckpointError(f"{path}: __metadata__: {value!r}, expected an object of strings")
    return value


def _read_entries(
    path: Path, header: dict[str, Any], data_start: int, size: int
) -> tuple[dict[str, TensorInfo], dict[str, int]]:
    infos: dict[str, TensorInfo] = {}
    ranges: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        info, start, stop = _read_entry(path, name, entry)
        infos[name] = info
        ranges.append((start, stop, name))
    end = 0
    for start, stop, name in sorted(ranges):
        if start != end:
            raise CheckpointError(f"{path}: {name}: data starts at {start}, expected {end}")
        if data_start + stop > size:
            raise CheckpointError(
                f"{path}: truncated at {name}: {size} bytes, expected at least {data_start + stop}"
            )
        end = stop
    if data_start + end != size:
        raise CheckpointError(f"{path}: {size} bytes, expected {data_start + end} by its header")
    return infos, {name: data_start + start for start, _, name in ranges}


def _read_entry(path: Path, name: str, entry: Any) -> tuple[TensorInfo, int, int]:
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise CheckpointError(f"{path}: {name}: header entry lacks dtype, shape or data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in SAFETENSORS_NAMES:
        known = ", ".join(SAFETENSORS_NAMES)
        raise CheckpointError(f"{path}: {name}: dtype {dtype!r}, expected one of {known}")
    if not _are_counts(shape):
        raise CheckpointError(f"{path}: {name}: shape {shape!r}, expected a list of sizes")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{path}: {name}: data_offsets {offsets!r}, expected [start, stop]")
    info = TensorInfo(name=name, dtype=SAFETENSORS_NAMES[dtype], shape=tuple(shape))
    start, stop = offsets
    if stop - start != info.num_bytes:
        raise CheckpointError(
            f"{path}: {name}: {stop - start} bytes,"
            f" expected {info.num_bytes} for {dtype} {info.shape}"
        )
    return info, start, stop


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
