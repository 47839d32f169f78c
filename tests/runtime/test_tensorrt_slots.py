"""Rows of slot caches: who is moved where, and that nobody's contents are lost."""

import random
from typing import Any

import pytest

from llmc.errors import UnsupportedError
from llmc.runtime.engines.tensorrt_device import PlanTensor
from llmc.runtime.engines.tensorrt_slots import SlotCaches
from tests.runtime.stand_in import HostDevice

SLOTS = 5


def cache_tensors(positions: int = 32) -> tuple[PlanTensor, ...]:
    """Two layers, keys of one and values of another width."""
    return tuple(
        PlanTensor(
            name=name,
            is_input=is_input,
            shape=(-1, heads, positions, 8),
            itemsize=2,
            aliases=None if is_input else name.removesuffix(".updated"),
        )
        for base, heads in (("key_cache.0", 2), ("value_cache.0", 4))
        for name, is_input in ((base, True), (f"{base}.updated", False))
    )


def contents(device: HostDevice, slots: SlotCaches, block: int) -> list[Any]:
    """Return a block's bytes in each cache, to be read and written."""
    return [
        device.bytes_at(cache.address + slots.row(block) * cache.row_bytes, cache.row_bytes)
        for cache in slots.caches
    ]


def mark(device: HostDevice, slots: SlotCaches, block: int) -> None:
    for found in contents(device, slots, block):
        found[:] = block + 1


def is_marked(device: HostDevice, slots: SlotCaches, block: int) -> bool:
    return all(bool((found == block + 1).all()) for found in contents(device, slots, block))


def test_the_last_row_is_copied_into_an_ended_ones_place() -> None:
    device = HostDevice()
    slots = SlotCaches(device, cache_tensors(), SLOTS)
    for block in range(SLOTS):
        mark(device, slots, block)
    slots.gather([0, 2], ended={1, 3, 4})
    assert [slots.row(block) for block in (0, 2)] == [0, 1]
    assert device.num_copied_bytes == sum(cache.row_bytes for cache in slots.caches)
    assert is_marked(device, slots, 2)
    device.num_copied_bytes = 0
    slots.gather([2, 0], ended=set())
    assert device.num_copied_bytes == 0, "any order will do"


def test_nothing_that_may_run_is_lost() -> None:
    """Random groups, random endings: every block not ended keeps its contents."""
    draw = random.Random(3)
    device = HostDevice()
    slots = SlotCaches(device, cache_tensors(), SLOTS)
    live: set[int] = set()
    for _ in range(300):
        group = draw.sample(range(SLOTS), draw.randint(0, SLOTS))
        ended = {block for block in range(SLOTS) if block not in group and draw.random() < 0.5}
        live -= ended
        slots.gather(group, ended=ended)
        assert sorted(slots.row(block) for block in group) == list(range(len(group)))
        assert sorted(map(slots.row, range(SLOTS))) == list(range(SLOTS))
        assert all(is_marked(device, slots, block) for block in live)
        for block in group:
            mark(device, slots, block)
        live |= set(group)


def test_slot_bytes_are_those_of_all_caches() -> None:
    assert SlotCaches.slot_bytes(cache_tensors()) == (2 + 4) * 32 * 8 * 2


def test_a_slot_that_cannot_be_bound_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"key_cache.0: a slot of 96 bytes"):
        SlotCaches(HostDevice(), cache_tensors(positions=3), SLOTS)
