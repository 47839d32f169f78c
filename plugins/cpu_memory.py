"""Memory of a CPU program: arenas in huge pages where there are any, and its step buffers."""

import ctypes
import mmap

import numpy as np

from llmc.plugins.cpu_program import Program

HUGE_PAGE_BYTES = 2 << 20


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
