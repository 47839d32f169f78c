"""Memory of the CPU engine: weights in huge pages where there are any, and the size of its KV pool.

Weights are read into an anonymous arena rather than mapped: pages of a file are small ones, which
make decode slower, and reading costs a fraction of a second (docs/targets/cpu.md).
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil

from llmc.errors import CheckpointError, UnsupportedError
from llmc.plugins.cpu_file import EngineFile, StoredTensor
from llmc.plugins.cpu_memory import HUGE_PAGE_BYTES, Arena
from llmc.plugins.cpu_program import KvShape

_READ_BYTES = 8 << 20


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
