"""Which KV block is free, owned, shared or remembered: block numbers only, no tensors.

A block is in exactly one of three states:

| state | references | contents | next |
|---|---|---|---|
| free | 0 | nothing worth keeping | allocate |
| cached | 0 | a full block, addressed by digest | share, or evicted by allocate (oldest first) |
| used | >= 1 | being written, or full and published | release |

A digest names the block's tokens and, by chaining, everything before them, so that equal digests
mean equal keys and values.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np

_DIGEST_BYTES = 16


def block_digest(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Name a full block by its own tokens and its predecessor's digest (the first: a salt).

    Cryptographic, because a collision would answer one client with another's context.
    """
    tokens = np.asarray(token_ids, dtype=np.int32).tobytes()
    return blake2b(parent + tokens, digest_size=_DIGEST_BYTES).digest()


class BlockManager:
    """The pool of `num_blocks` blocks. Not thread-safe; the scheduler owns it."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0, num_blocks
        self.num_blocks = num_blocks
        # Popped from the end: low numbers first, so that short tests and small loads touch few
        # pages.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._references = [0] * num_blocks
        self._digest_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can hand out: free and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    def references(self, block: int) -> int:
        return self._references[block]

    def find(self, digests: Iterable[bytes]) -> list[int]:
        """Return the blocks of the longest known prefix of a chain of digests; changes nothing."""
        found = []
        for digest in digests:
            block = self._block_of.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def num_idle(self, blocks: Iterable[int]) -> int:
        """Count the blocks nobody uses: sharing those makes them unavailable to others."""
        return sum(self._references[block] == 0 for block in blocks)

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block, as returned by `find`."""
        for block in blocks:
            if self._references[block] == 0:
                del self._cached[block]
            self._references[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks with one reference each, forgetting the oldest cached if need be."""
        assert count <= self.num_available, (count, self.num_available)
        blocks = []
        for _ in range(count):
            if self._free:
                block = self._free.pop()
            else:
                block, _ = self._cached.popitem(last=False)
                del self._block_of[self._digest_of.pop(block)]
            self._references[block] = 1
            blocks.append(block)
        return blocks

    def publish(self, block: int, digest: bytes) -> None:
        """Make a used, full block findable; the first block of a digest wins."""
        assert self._references[block] > 0, block
        if digest not in self._block_of and block not in self._digest_of:
            self._block_of[digest] = block
            self._digest_of[block] = digest

    def release(self, blocks: Sequence[int]) -> None:
        """Drop a reference of each block of one sequence, in sequence order.

        The last blocks become the oldest: a chain is forgotten from its end, because a block
        without its predecessors can't be found.
        """
        for block in reversed(blocks):
            assert self._references[block] > 0, f"block {block} released twice"
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._digest_of:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def check(self, owners: Iterable[Sequence[int]]) -> None:
        """Assert every invariant against the block lists of all live sequences; for tests."""
        counts = [0] * self.num_blocks
        for blocks in owners:
            assert len(set(blocks)) == len(blocks), f"a block twice in one sequence: {blocks}"
            for block in blocks:
                counts[block] += 1
        assert counts == self._references, "references do not match the owners"
        idle = [*self._free, *self._cached]
        assert len(set(idle)) == len(idle), "a block is idle twice"
        assert sorted(idle) == [b for b, count in enumerate(counts) if count == 0], "leak"
        assert all(b in self._digest_of for b in self._cached), "a cached block without digest"
        assert {d: b for b, d in self._digest_of.items()} == self._block_of
        assert not any(b in self._digest_of for b in self._free), "a free block with digest"
