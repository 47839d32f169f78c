import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmc.runtime.kv_blocks import BlockManager, block_digest


def chain(*blocks: tuple[int, ...]) -> list[bytes]:
    digests: list[bytes] = []
    for block in blocks:
        digests.append(block_digest(digests[-1] if digests else b"", block))
    return digests


def test_digest_depends_on_tokens_and_on_everything_before() -> None:
    first, second = chain((1, 2), (3, 4))
    assert chain((1, 2), (3, 4)) == [first, second]
    assert chain((1, 2), (3, 5))[1] != second
    assert chain((1, 9), (3, 4))[1] != second
    assert chain((1, 2), (1, 2))[0] != chain((1, 2), (1, 2))[1]


def test_published_blocks_are_found_as_a_prefix_and_shared() -> None:
    blocks = BlockManager(8)
    digests = chain((1,), (2,), (3,))
    mine = blocks.allocate(3)
    assert blocks.find(digests) == []
    blocks.publish(mine[0], digests[0])
    blocks.publish(mine[2], digests[2])
    assert blocks.find(digests) == mine[:1], "a gap ends the prefix"
    blocks.publish(mine[1], digests[1])
    assert blocks.find(digests) == mine
    assert blocks.find(chain((1,), (7,))) == mine[:1]
    blocks.share(mine[:2])
    assert [blocks.references(b) for b in mine] == [2, 2, 1]
    blocks.check([mine, mine[:2]])
    blocks.release(mine)
    assert blocks.num_used == 2 and blocks.num_cached == 1
    assert blocks.num_idle(mine) == 1
    blocks.check([mine[:2]])


def test_first_block_of_a_digest_wins_and_the_copy_is_plainly_freed() -> None:
    blocks = BlockManager(4)
    (digest,) = chain((1,))
    original, copy = blocks.allocate(2)
    blocks.publish(original, digest)
    blocks.publish(copy, digest)
    assert blocks.find([digest]) == [original]
    blocks.release([copy])
    assert blocks.num_cached == 0 and blocks.num_used == 1
    blocks.release([original])
    assert blocks.num_cached == 1
    blocks.check([])


def test_eviction_takes_the_least_recently_used_and_a_chain_from_its_end() -> None:
    blocks = BlockManager(4)
    old, new = chain((1,), (2,)), chain((8,), (9,))
    for digests in (old, new):
        mine = blocks.allocate(2)
        for block, digest in zip(mine, digests, strict=True):
            blocks.publish(block, digest)
        blocks.release(mine)
    assert blocks.num_cached == blocks.num_available == 4
    taken = blocks.allocate(1)
    assert len(blocks.find(old)) == 1 and len(blocks.find(new)) == 2
    blocks.check([taken])
    again = blocks.find(old)
    blocks.share(again)
    blocks.release(again)
    taken += blocks.allocate(1)
    assert len(blocks.find(old)) == 1 and len(blocks.find(new)) == 1, "old was used last"
    blocks.check([taken])


def test_double_release_and_overdraft_are_programmer_errors() -> None:
    blocks = BlockManager(2)
    mine = blocks.allocate(1)
    blocks.release(mine)
    with pytest.raises(AssertionError, match="released twice"):
        blocks.release(mine)
    with pytest.raises(AssertionError):
        blocks.allocate(3)


def test_check_notices_a_leak_and_a_stolen_block() -> None:
    blocks = BlockManager(3)
    mine = blocks.allocate(2)
    with pytest.raises(AssertionError, match="references"):
        blocks.check([mine[:1]])
    with pytest.raises(AssertionError, match="references"):
        blocks.check([mine, mine[:1]])


@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 1), max_size=6)), max_size=60))
@settings(deadline=None)
def test_random_traffic_keeps_every_invariant(actions: list[tuple[int, list[int]]]) -> None:
    """Sequences of one-token blocks over a tiny alphabet: many equal prefixes, few blocks."""
    blocks = BlockManager(7)
    live: list[list[int]] = []
    for kind, tokens in actions:
        if kind < 3:
            digests = chain(*((t,) for t in tokens))
            shared = blocks.find(digests)
            if blocks.num_available - blocks.num_idle(shared) >= len(tokens) - len(shared):
                blocks.share(shared)
                mine = shared + blocks.allocate(len(tokens) - len(shared))
                for block, digest in zip(mine, digests, strict=True):
                    blocks.publish(block, digest)
                live.append(mine)
        elif live:
            blocks.release(live.pop(len(tokens) % len(live)))
        blocks.check(live)
        assert blocks.num_used + blocks.num_available == 7
    for mine in live:
        blocks.release(mine)
    blocks.check([])
    assert blocks.num_used == 0
