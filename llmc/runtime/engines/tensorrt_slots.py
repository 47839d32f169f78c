"""KV caches of TensorRT plans: a row per slot, and which sequence's is where.

A plan's cache is one tensor [rows, heads, max_seq_len, head_size] per layer and kind, updated in
place. A context step is bound to one row of it, a generation step to the first rows, so the
sequences that generate together must lie in the first rows: others are moved out of their way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from llmc.errors import UnsupportedError
from llmc.runtime.engines.tensorrt_device import Device, PlanTensor

ADDRESS_ALIGNMENT = 256
"""Bytes TensorRT wants the address of a tensor to be a multiple of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """One layer's keys or values: `input` and `output` are the plan's names, in one memory."""

    input: str
    output: str
    address: int
    row_shape: tuple[int, ...]
    row_bytes: int


class SlotCaches:
    """`num_slots` rows of each cache, and the row of each block (a sequence's whole cache)."""

    def __init__(self, device: Device, tensors: Sequence[PlanTensor], num_slots: int) -> None:
        self._device = device
        self.num_slots = num_slots
        inputs = {tensor.name: tensor for tensor in tensors if tensor.is_input}
        self.caches = [
            _allocate(device, inputs[output.aliases], output.name, num_slots)
            for output in tensors
            if output.aliases is not None
        ]
        # Every block has a row, and every row a block.
        self._row_of = list(range(num_slots))
        self._block_in = list(range(num_slots))
        largest = max(cache.row_bytes for cache in self.caches)
        self._spare = device.allocate(largest)

    @staticmethod
    def slot_bytes(tensors: Sequence[PlanTensor]) -> int:
        """Return how much memory one slot takes in all caches of a plan."""
        cached = {tensor.aliases for tensor in tensors}
        return sum(_row_bytes(tensor) for tensor in tensors if tensor.name in cached)

    def row(self, block: int) -> int:
        return self._row_of[block]

    def gather(self, blocks: Sequence[int], *, ended: set[int]) -> None:
        """Move rows until `blocks` have the first ones, in any order.

        A row whose block is in `ended` is overwritten, any other that stands in the way changes
        places with the one that needs its place.
        """
        count = len(blocks)
        wanted = set(blocks)
        places = [row for row in range(count) if self._block_in[row] not in wanted]
        for block in blocks:
            source = self._row_of[block]
            if source >= count:
                self._move(source, places.pop(), ended)

    def _move(self, source: int, target: int, ended: set[int]) -> None:
        """Bring a row to another, the lowest that is free; what is there goes the other way."""
        block, displaced = self._block_in[source], self._block_in[target]
        for cache in self.caches:
            first, second = (cache.address + row * cache.row_bytes for row in (source, target))
            if displaced in ended:
                self._device.copy(second, first, cache.row_bytes)
            else:
                self._device.copy(self._spare, second, cache.row_bytes)
                self._device.copy(second, first, cache.row_bytes)
                self._device.copy(first, self._spare, cache.row_bytes)
        self._row_of[block], self._row_of[displaced] = target, source
        self._block_in[target], self._block_in[source] = block, displaced


def _allocate(device: Device, tensor: PlanTensor, output: str, num_slots: int) -> Cache:
    row_bytes = _row_bytes(tensor)
    if row_bytes % ADDRESS_ALIGNMENT:
        raise UnsupportedError(
            f"{tensor.name}: a slot of {row_bytes} bytes, which must be a multiple of"
            f" {ADDRESS_ALIGNMENT} for the next slot to be bound",
            hint="build with a max_seq_len that is a multiple of 64",
        )
    return Cache(
        input=tensor.name,
        output=output,
        address=device.allocate(num_slots * row_bytes),
        row_shape=tensor.shape[1:],
        row_bytes=row_bytes,
    )


def _row_bytes(tensor: PlanTensor) -> int:
    assert all(length > 0 for length in tensor.shape[1:]), tensor
    return prod(tensor.shape[1:]) * tensor.itemsize
