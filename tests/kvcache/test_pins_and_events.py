"""Pins, reset, events, and what the manager refuses to be made of."""

import ast
from pathlib import Path

import pytest

import triolet.kvcache
from triolet.kvcache.errors import LawBroken, PinLimitExceeded
from triolet.kvcache.events import BlocksEvicted, BlocksStored, CacheEvent
from triolet.kvcache.hashing import HashChain
from triolet.kvcache.ids import BlockId
from triolet.kvcache.manager import KVCacheManager


def cached(cache: KVCacheManager, num_tokens: int) -> None:
    """Leave a prompt of so many tokens in the cache."""
    blocks = cache.open()
    assert cache.admit(blocks, cache.match(blocks, range(num_tokens)), num_tokens)
    cache.store(blocks, range(num_tokens), num_tokens)
    cache.release(blocks)


def fill(cache: KVCacheManager) -> None:
    """Take every block that can be had, and give it back."""
    blocks = cache.open()
    assert cache.reserve(blocks, cache.num_free_blocks * cache.block_size) is not None
    cache.release(blocks)


def test_a_pinned_prefix_outlives_pressure() -> None:
    """While it is pinned nothing evicts it; then it is evicted like any other."""
    cache = KVCacheManager(num_blocks=4, block_size=4)
    cached(cache, 9)
    pin = cache.pin(range(9))
    assert pin.num_tokens == 8
    assert cache.num_free_blocks == 2
    fill(cache)
    cache.check()
    assert cache.match(cache.open(), range(9)).num_tokens == 8
    assert cache.unpin(pin)
    assert not cache.unpin(pin)
    fill(cache)
    assert cache.match(cache.open(), range(9)).num_tokens == 0


def test_pins_keep_to_their_limit() -> None:
    """The message says how many blocks are wanted and how many there are; a block pinned twice counts once."""
    cache = KVCacheManager(num_blocks=8, block_size=4, max_pinned_blocks=2)
    cached(cache, 17)
    with pytest.raises(PinLimitExceeded, match="takes 4 blocks more; 0 of 2 are pinned"):
        cache.pin(range(17))
    cache.pin(range(8))
    cache.pin(range(4))
    with pytest.raises(PinLimitExceeded, match="takes 1 blocks more; 2 of 2 are pinned"):
        cache.pin(range(12))
    cache.check()


def test_pins_expire_when_their_time_has_come() -> None:
    """At the very moment, not before, and once."""
    cache = KVCacheManager(num_blocks=4, block_size=4)
    cached(cache, 9)
    first = cache.pin(range(4), expires_at=5.0)
    cache.pin(range(4), expires_at=7.0)
    assert cache.expire(4.9) == 0
    assert cache.expire(5.0) == 1
    assert not cache.unpin(first)
    assert cache.num_free_blocks == 3
    assert cache.expire(100.0) == 1
    assert cache.num_free_blocks == 4


def test_a_pinned_block_is_copied_before_it_is_written() -> None:
    """The only owner of a pinned block, truncated into it, writes into a copy."""
    cache = KVCacheManager(num_blocks=4, block_size=4)
    blocks = cache.open()
    cache.reserve(blocks, 4)
    cache.store(blocks, range(4), 4)
    cache.pin(range(4))
    cache.truncate(blocks, 3)
    assert cache.reserve(blocks, 4) == [(0, 0, 1)]
    cache.check()
    assert cache.take_copies() == [(0, 1)]
    assert cache.match(cache.open(), range(5)).num_tokens == 4


def test_reset_forgets_everything_once_nothing_is_in_use() -> None:
    """It refuses while a sequence holds blocks or a step is in flight with some; then pins go too."""
    cache = KVCacheManager(num_blocks=4, block_size=4)
    cached(cache, 9)
    pin = cache.pin(range(4))
    blocks = cache.open()
    cache.reserve(blocks, 4)
    assert not cache.reset()
    cache.begin_step(1)
    cache.release(blocks)
    assert not cache.reset()
    cache.land(1)
    assert cache.match(cache.open(), range(9)).num_tokens == 8
    assert cache.reset()
    cache.check()
    assert cache.match(cache.open(), range(9)).num_tokens == 0
    assert not cache.unpin(pin)
    assert cache.num_free_blocks == 4


def test_events_say_what_can_be_matched() -> None:
    """Stored blocks come with hashes, parents and tokens, evicted ones with hashes; after the end nothing comes."""
    cache = KVCacheManager(num_blocks=2, block_size=2)
    told: list[CacheEvent] = []
    unsubscribe = cache.subscribe(told.append)
    blocks = cache.open(extra_keys=("salt",))
    cache.reserve(blocks, 4)
    cache.store(blocks, [5, 6, 7, 8], 4)
    chain = HashChain(blocks.chain.root, 2)
    chain.extend([5, 6, 7, 8], 2)
    assert told == [
        BlocksStored(
            group=0,
            blocks=(BlockId(0), BlockId(1)),
            hashes=tuple(chain.hashes),
            parent_hashes=(b"s4:salt", chain.hashes[0]),
            token_ids=((5, 6), (7, 8)),
        )
    ]
    told.clear()
    cache.release(blocks)
    fill(cache)
    assert told == [
        BlocksEvicted(group=0, blocks=(BlockId(1),), hashes=(chain.hashes[1],)),
        BlocksEvicted(group=0, blocks=(BlockId(0),), hashes=(chain.hashes[0],)),
    ]
    told.clear()
    unsubscribe()
    unsubscribe()
    cached(cache, 4)
    assert told == []


def test_a_collision_of_hashes_is_not_a_hit() -> None:
    """With a digest that gives everything one hash, only the content that was indexed is found."""
    cache = KVCacheManager(num_blocks=8, block_size=2, digest=lambda preimage: b"x")
    blocks = cache.open()
    cache.reserve(blocks, 4)
    cache.store(blocks, [1, 2, 3, 4], 4)
    cache.check()
    assert cache.match(cache.open(), [1, 2, 9]).num_tokens == 2
    assert cache.match(cache.open(), [3, 4, 9]).num_tokens == 0
    assert cache.match(cache.open(), [1, 2, 3, 4, 9]).num_tokens == 2


def test_check_names_the_law_that_is_broken() -> None:
    """A reference too many is K2, and the error is an AssertionError also where asserts are off."""
    cache = KVCacheManager(num_blocks=2, block_size=2)
    blocks = cache.open()
    cache.reserve(blocks, 2)
    blocks.tables[0].append(blocks.tables[0][0])
    with pytest.raises(LawBroken, match=r"^K7: 2 tokens have 2 table entries"):
        cache.check()
    blocks.tables[0].clear()
    blocks.num_tokens = 0
    with pytest.raises(AssertionError, match="K11: a sequence without tokens counts as live"):
        cache.check()


def test_no_check_is_an_assert_statement() -> None:
    """`python -O` removes assert statements; kvcache has none."""
    folder = Path(triolet.kvcache.__file__).parent
    for path in folder.glob("*.py"):
        assert not any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(path.read_text()))), path


def test_a_manager_has_blocks_tokens_and_groups() -> None:
    """Each impossible size is refused with its number."""
    with pytest.raises(ValueError, match="at least one block, not 0"):
        KVCacheManager(num_blocks=0, block_size=2)
    with pytest.raises(ValueError, match="at least one token, not 0"):
        KVCacheManager(num_blocks=2, block_size=0)
    with pytest.raises(ValueError, match="at least one group"):
        KVCacheManager(num_blocks=2, block_size=2, groups=())
