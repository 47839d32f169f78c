"""Memory of the CPU engine: weights, KV pool and step buffers, in huge pages where there are any.

Weights are read into an anonymous arena rather than mapped: pages of a file are small ones, which
make decode slower, and reading costs a fraction of a second (docs/targets/cpu.md).
"""

import ctypes
import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil

from llmc.errors import CheckpointError, UnsupportedError
from llmc.plugins.cpu_file import EngineFile, StoredTensor
from llmc.plugins.cpu_program import KvShape, Program

HUGE_PAGE_BYTES = 2 << 20
_READ_BYTES = 8 << 20


class Arena:
    """Zeroed memory, touched lazily; `address` is aligned to a huge page."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._map = mmap.mmap(-1, num_bytes + HUGE_PAGE_BYTES)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._skip = -start % HUGE_PAGE_BYTES
        self.address = start + self._skip

    def view(self, offset: int, num_bytes: int) -> memoryview:
        """Return writable bytes [offset, offset + num_bytes)."""
        assert 0 <= offset and offset + num_bytes <= self.num_bytes
        return memoryview(self._map)[self._skip + offset : self._skip + offset + num_bytes]


class Weights:
    """The tensors of an engine file, loaded: an address for each name."""

    def __init__(self, file: EngineFile, *, threads: int) -> None:
        """Read resident tensors into an arena, map the others.

        Raises: CheckpointError when the file changed while it was read.
        """
        resident = [tensor for tensor in file.tensors.values() if tensor.resident]
        places: dict[int, int] = {}
        end = 0
        for tensor in resident:
            places[tensor.offset] = end
            end += -(-tensor.num_bytes // 64) * 64
        # Kernels prefetch a little past the end of a tensor.
        self._arena = Arena(end + HUGE_PAGE_BYTES)
        with file.path.open("rb") as handle:
            _read_all(handle.fileno(), file, self._arena, _pieces(resident, places), threads)
            self._file = np.memmap(handle, dtype=np.uint8, mode="r")
        self.addresses = {
            name: (
                self._arena.address + places[tensor.offset]
                if tensor.resident
                else self._file.ctypes.data + tensor.offset
            )
            for name, tensor in file.tensors.items()
        }


def _pieces(tensors: list[StoredTensor], places: dict[int, int]) -> Iterator[tuple[int, int, int]]:
    """Yield (offset in file, offset in arena, bytes), none larger than _READ_BYTES."""
    for tensor in tensors:
        for start in range(0, tensor.num_bytes, _READ_BYTES):
            count = min(_READ_BYTES, tensor.num_bytes - start)
            yield tensor.offset + start, places[tensor.offset] + start, count


def _read_all(
    handle: int,
    file: EngineFile,
    arena: Arena,
    pieces: Iterator[tuple[int, int, int]],
    threads: int,
) -> None:
    def read(piece: tuple[int, int, int]) -> None:
        position, place, count = piece
        view = arena.view(place, count)
        while view:
            done = os.preadv(handle, [view], position)
            if done == 0:
                raise CheckpointError(f"{file.path}: ends at byte {position} while being read")
            view, position = view[done:], position + done

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(read, pieces):
            pass


def plan_kv_blocks(
    shape: KvShape, limits: dict[str, int], *, max_tokens: int | None, free_fraction: float
) -> int:
    """Return how many blocks the KV pool has.

    As many as `free_fraction` of the free memory holds, at most `max_tokens`, and never more than
    all sequences of a full batch can use.
    Raises: UnsupportedError when not even one block fits.
    """
    size = shape.tokens_per_block
    most = limits["max_batch_size"] * -(-limits["max_seq_len"] // size)
    if max_tokens is not None:
        most = min(most, max_tokens // size)
    free = psutil.virtual_memory().available
    fitting = int(free * free_fraction) // (shape.block_bytes * shape.num_layers)
    if min(most, fitting) < 1:
        raise UnsupportedError(
            f"KV cache: no block of {size} tokens fits: max_tokens {max_tokens},"
            f" {free_fraction} of {free / 2**30:.1f} GiB free memory",
            hint="give it more tokens or memory",
        )
    return min(most, fitting)


class StepBuffers:
    """One float32 matrix per value of a program; values not alive together share memory."""

    def __init__(self, program: Program, *, max_tokens: int, max_logits: int) -> None:
        self.max_tokens, self.max_logits = max_tokens, max_logits
        slots, sizes = _share(program, {"T": max_tokens, "L": max_logits})
        offsets = [0]
        for size in sizes:
            offsets.append(offsets[-1] + -(-size // 64) * 64)
        self._arena = Arena(offsets[-1] + 64)
        self._offsets = {name: offsets[slot] for name, slot in slots.items()}
        self.index = {name: i for i, name in enumerate(program.values)}
        self.addresses = [self._arena.address + self._offsets[name] for name in program.values]
        self._columns = {name: value.columns for name, value in program.values.items()}

    def array(self, name: str, rows: int) -> "np.ndarray[tuple[int, int], np.dtype[np.float32]]":
        """Return the first `rows` rows of a value, writable."""
        columns = self._columns[name]
        view = self._arena.view(self._offsets[name], rows * columns * 4)
        return np.frombuffer(view, np.float32).reshape(rows, columns)


def _share(program: Program, rows: dict[str, int]) -> tuple[dict[str, int], list[int]]:
    """Return each value's slot and the bytes of each slot: first fit over lifetimes."""
    last_read = {
        name: place for place, op in enumerate(program.ops) for name in (*op.inputs, *op.outputs)
    }
    if program.output is not None:
        last_read[program.output] = len(program.ops)
    sizes: list[int] = []
    busy_until: list[int] = []
    slots: dict[str, int] = {}
    for place, op in enumerate(program.ops):
        for name in op.outputs:
            value = program.values[name]
            size = rows[value.rows] * value.columns * 4
            # An op never writes where it still reads, so a slot is free only after its last reader.
            free = [slot for slot, until in enumerate(busy_until) if until < place]
            slot = min(free, key=lambda slot: abs(sizes[slot] - size), default=len(sizes))
            if slot == len(sizes):
                sizes.append(0)
                busy_until.append(0)
            sizes[slot] = max(sizes[slot], size)
            busy_until[slot] = last_read[name]
            slots[name] = slot
    return slots, sizes
