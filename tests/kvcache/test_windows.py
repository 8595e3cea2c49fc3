"""Sliding-window groups beside full-attention groups in one sequence."""

import pytest

from triolet.kvcache.errors import SequenceStateError
from triolet.kvcache.group import KVGroup
from triolet.kvcache.manager import KVCacheManager

FULL = KVGroup()
WINDOW = KVGroup(sliding_window=4)


def test_a_window_gives_back_what_it_has_left() -> None:
    """Blocks that no later query of the group sees go back; the full group keeps its own."""
    cache = KVCacheManager(num_blocks=12, block_size=2, groups=(FULL, WINDOW))
    blocks = cache.open()
    cache.reserve(blocks, 8)
    assert cache.num_free_blocks == 4
    cache.reserve(blocks, 9)
    cache.check()
    assert None not in blocks.tables[0]
    assert [block is None for block in blocks.tables[1]] == [True, True, False, False, False]
    assert cache.num_free_blocks == 4


def test_a_window_pays_for_its_own_growth() -> None:
    """In a full pool the block that the window leaves is the one it grows into."""
    cache = KVCacheManager(num_blocks=4, block_size=2, groups=(WINDOW,))
    blocks = cache.open()
    cache.reserve(blocks, 8)
    for num_tokens in range(9, 30):
        assert cache.reserve(blocks, num_tokens) is not None
        cache.check()
    cache.release(blocks)
    assert cache.num_free_blocks == 4


def test_a_window_does_not_pay_with_blocks_in_limbo() -> None:
    """While a step in flight may read the block that was left, it is no help, and nothing is given up for it."""
    cache = KVCacheManager(num_blocks=4, block_size=2, groups=(WINDOW,))
    blocks = cache.open()
    cache.reserve(blocks, 8)
    cache.begin_step(1)
    assert cache.reserve(blocks, 9) is None
    assert None not in blocks.tables[0]
    cache.land(1)
    assert cache.reserve(blocks, 9) is not None
    cache.check()


def test_a_hit_needs_only_the_last_window() -> None:
    """A window group is hit by the blocks its window sees; the entries before are None."""
    cache = KVCacheManager(num_blocks=12, block_size=2, groups=(FULL, WINDOW))
    blocks = cache.open()
    cache.reserve(blocks, 8)
    cache.store(blocks, range(8), 8)
    cache.release(blocks)
    again = cache.open()
    match = cache.match(again, range(9))
    assert match.num_tokens == 8
    assert cache.admit(again, match, 9)
    cache.check()
    assert [block is None for block in again.tables[1]] == [True, True, False, False, False]
    assert None not in again.tables[0]


def test_a_hit_is_as_long_as_every_group_allows() -> None:
    """Where a window has lost its last blocks, the hit ends before them for all groups."""
    cache = KVCacheManager(num_blocks=9, block_size=2, groups=(FULL, WINDOW))
    blocks = cache.open()
    cache.reserve(blocks, 8)
    cache.store(blocks, range(8), 8)
    cache.release(blocks)
    taken = cache.open()
    cache.reserve(taken, 2)  # one block was free, one is evicted: the last of the first group
    match = cache.match(cache.open(), range(9))
    assert match.num_tokens == 6
    assert all(len(table) == 3 for table in match.tables)


def test_a_window_cannot_be_taken_back() -> None:
    """Truncating to where the window would see blocks that are gone is refused; to nothing it works."""
    cache = KVCacheManager(num_blocks=8, block_size=2, groups=(WINDOW,))
    blocks = cache.open()
    cache.reserve(blocks, 8)
    cache.reserve(blocks, 12)
    cache.truncate(blocks, 8)
    with pytest.raises(SequenceStateError, match="the window has passed position 6"):
        cache.truncate(blocks, 6)
    cache.check()
    cache.truncate(blocks, 0)
    cache.check()
    assert cache.num_free_blocks == 8


def test_a_window_is_a_positive_number() -> None:
    """A window of nothing, or of half a token, is refused."""
    with pytest.raises(ValueError, match="sliding_window"):
        KVGroup(sliding_window=0)
    with pytest.raises(TypeError, match="sliding_window"):
        KVGroup(sliding_window=2.5)  # type: ignore[arg-type]
