"""Forks: everything is shared until somebody writes."""

from triolet.kvcache.manager import KVCacheManager
from triolet.kvcache.sequence import SequenceBlocks


def forked(num_blocks: int = 8) -> tuple[KVCacheManager, SequenceBlocks, SequenceBlocks]:
    """A sequence of six tokens in blocks of four, and its fork."""
    cache = KVCacheManager(num_blocks=num_blocks, block_size=4)
    parent = cache.open()
    assert cache.admit(parent, cache.match(parent, range(6)), 6)
    child = cache.fork(parent)
    cache.check()
    return cache, parent, child


def test_a_fork_takes_no_block() -> None:
    """Parent and child name the same blocks, the partial one among them."""
    cache, parent, child = forked()
    assert child.tables == parent.tables
    assert child.num_tokens == 6
    assert (cache.num_free_blocks, cache.num_sequences) == (6, 2)
    assert cache.take_copies() == []


def test_the_first_to_write_gets_a_copy_and_the_last_writes_in_place() -> None:
    """Of two owners of a partial block one copies it, and then the other owns it alone."""
    cache, parent, child = forked()
    assert cache.reserve(child, 7) == [(0, 1, 2)]
    assert cache.reserve(parent, 7) == []
    assert cache.take_copies() == [(1, 2)]
    assert cache.take_copies() == []
    cache.check()


def test_forks_of_a_fork_each_get_their_copy() -> None:
    """Three owners make two copies, both from the one source."""
    cache, parent, child = forked()
    grandchild = cache.fork(child)
    for blocks in (parent, child, grandchild):
        assert cache.reserve(blocks, 7) is not None
    cache.check()
    assert cache.take_copies() == [(1, 2), (1, 3)]


def test_a_copy_of_a_block_that_is_still_to_be_filled_comes_from_its_source() -> None:
    """Two generations in one step: every copy reads a block that has its content before the step."""
    cache, _parent, child = forked()
    cache.reserve(child, 7)
    cache.truncate(child, 6)
    grandchild = cache.fork(child)
    cache.reserve(grandchild, 7)
    assert cache.take_copies() == [(1, 2), (1, 3)]


def test_a_copy_is_dropped_with_its_target() -> None:
    """Nobody needs the content of a block that was released before the step."""
    cache, _parent, child = forked()
    cache.reserve(child, 7)
    cache.release(child)
    cache.check()
    assert cache.take_copies() == []


def test_a_fork_that_cannot_copy_changes_nothing() -> None:
    """No block left for the copy: reserve says None, and both still share."""
    cache, parent, child = forked(num_blocks=2)
    assert cache.reserve(child, 7) is None
    assert child.tables == parent.tables
    cache.release(parent)
    assert cache.reserve(child, 7) == []
    cache.check()


def test_full_blocks_are_never_copied() -> None:
    """A fork at a block boundary writes into a block of its own anyway."""
    cache = KVCacheManager(num_blocks=4, block_size=4)
    parent = cache.open()
    cache.reserve(parent, 8)
    child = cache.fork(parent)
    assert cache.reserve(child, 9) == [(0, 2, 2)]
    assert cache.take_copies() == []


def test_either_side_may_go_first() -> None:
    """Blocks come back when the last of the owners is gone."""
    cache, parent, child = forked()
    cache.release(parent)
    assert cache.num_free_blocks == 6
    cache.release(child)
    cache.check()
    assert cache.num_free_blocks == 8


def test_a_fork_of_nothing_is_nothing() -> None:
    """A handle without blocks forks into another one."""
    cache = KVCacheManager(num_blocks=1, block_size=4)
    child = cache.fork(cache.open())
    assert (child.num_tokens, cache.num_sequences) == (0, 0)
    cache.check()
