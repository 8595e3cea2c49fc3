"""What is drawn of the pool is what the pool is."""

import pytest

from triolet.kvcache.ids import BlockId
from triolet.kvcache.manager import KVCacheManager
from triolet.kvcache.sequence import SequenceBlocks
from triolet.kvcache.view import CACHED, FREE, LIMBO, OWNED, SHARED, BlockCounts, BlockState

TOKENS = [5, 6, 7, 8, 9]


def owner(cache: KVCacheManager, num_tokens: int = 5) -> SequenceBlocks:
    """A sequence of TOKENS whose full blocks are stored: two blocks of two, and a third with one token."""
    blocks = cache.open()
    cache.reserve(blocks, num_tokens)
    cache.store(blocks, TOKENS, num_tokens)
    return blocks


def test_every_state_has_its_cell_and_is_counted() -> None:
    """Owned in the owner's colour, shared, in limbo until the step lands, then cached or free."""
    cache = KVCacheManager(num_blocks=6, block_size=2)
    first = owner(cache)
    second = cache.fork(first)
    third = cache.open()
    cache.reserve(third, 2)
    tables = [(0, first.tables[0]), (1, second.tables[0]), (3, third.tables[0])]
    cells, counts = cache.view.cells(tables)
    assert list(cells) == [SHARED, SHARED, SHARED, OWNED + 3, FREE, FREE]
    assert counts == BlockCounts(free=2, cached=0, owned=1, shared=3, limbo=0, pinned=0)
    cache.begin_step(1)
    for blocks in (first, second, third):
        cache.release(blocks)
    cells, counts = cache.view.cells([])
    assert list(cells) == [LIMBO] * 4 + [FREE] * 2
    assert counts == BlockCounts(free=2, cached=0, owned=0, shared=0, limbo=4, pinned=0)
    cache.land(1)
    pin = cache.pin(TOKENS[:2])
    cells, counts = cache.view.cells([])
    assert list(cells) == [CACHED, CACHED, FREE, FREE, FREE, FREE]
    assert counts == BlockCounts(free=4, cached=2, owned=0, shared=0, limbo=0, pinned=1)
    assert cache.unpin(pin)


def test_a_block_tells_its_state_and_what_is_found_in_it() -> None:
    """Refcount, pin, hash, parent and tokens; nothing is known of a block that is not stored."""
    cache = KVCacheManager(num_blocks=6, block_size=2)
    first = owner(cache)
    fork = cache.fork(first)
    view = cache.view
    assert (view.block(BlockId(0)).state, view.block(BlockId(0)).refcount) == (BlockState.SHARED, 2)
    cache.release(fork)
    seen = view.block(BlockId(1))
    assert (seen.block, seen.state, seen.refcount, seen.is_pinned) == (1, BlockState.OWNED, 1, False)
    content = view.content(BlockId(1))
    assert content is not None
    assert (content.group, content.token_ids) == (0, (7, 8))
    assert (content.content_hash, content.parent_hash) == (first.chain.hashes[1], first.chain.hashes[0])
    assert seen.content_hash == first.chain.hashes[1]
    assert view.content(BlockId(2)) is None
    assert view.block(BlockId(2)).content_hash is None
    assert view.refcount(BlockId(1)) == 1
    cache.begin_step(1)
    cache.release(first)
    assert view.block(BlockId(1)).state is BlockState.LIMBO
    cache.land(1)
    cache.pin(TOKENS[:2])
    assert view.block(BlockId(0)).state is BlockState.CACHED
    assert view.block(BlockId(0)).is_pinned
    assert view.block(BlockId(2)).state is BlockState.FREE
    with pytest.raises(IndexError):
        view.block(BlockId(6))


def test_what_a_window_has_passed_is_not_drawn() -> None:
    """An entry that is None owns nothing."""
    cache = KVCacheManager(num_blocks=2, block_size=2)
    cells, counts = cache.view.cells([(0, [None, None])])
    assert list(cells) == [FREE, FREE]
    assert counts.free == 2
