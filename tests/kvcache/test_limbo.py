"""Steps in flight: what they may name stays in limbo until they have landed."""

import pytest

from triolet.kvcache.errors import StaleMatch, StepOrderError
from triolet.kvcache.manager import KVCacheManager


def test_a_release_waits_for_the_step_in_flight() -> None:
    """The blocks are neither free nor matched before the step has landed, then both."""
    cache = KVCacheManager(num_blocks=4, block_size=4)
    blocks = cache.open()
    cache.admit(blocks, cache.match(blocks, range(9)), 9)
    cache.store(blocks, range(9), 9)
    cache.begin_step(1)
    cache.release(blocks)
    cache.check()
    assert (cache.num_free_blocks, cache.usage) == (1, 3 / 4)
    assert cache.match(cache.open(), range(9)).num_tokens == 0
    cache.land(1)
    cache.check()
    assert (cache.num_free_blocks, cache.usage) == (4, 0.0)
    assert cache.match(cache.open(), range(9)).num_tokens == 8


def test_a_release_waits_for_the_last_step_begun() -> None:
    """With two steps in flight the first landing frees nothing that was released after the second began."""
    cache = KVCacheManager(num_blocks=4, block_size=4)
    early, late = cache.open(), cache.open()
    cache.reserve(early, 4)
    cache.reserve(late, 4)
    cache.begin_step(1)
    cache.release(early)
    cache.begin_step(2)
    cache.release(late)
    cache.land(1)
    assert cache.num_free_blocks == 3
    cache.land(2)
    assert cache.num_free_blocks == 4
    cache.check()


def test_a_shared_block_is_free_to_its_other_owner() -> None:
    """Limbo is for blocks that nobody owns."""
    cache = KVCacheManager(num_blocks=4, block_size=4)
    parent = cache.open()
    cache.reserve(parent, 4)
    child = cache.fork(parent)
    cache.begin_step(1)
    cache.release(parent)
    assert (child.tables, cache.usage) == (([0],), 1 / 4)
    cache.check()


def test_a_match_of_a_block_that_went_into_limbo_is_stale() -> None:
    """The match was made while the block had an owner."""
    cache = KVCacheManager(num_blocks=4, block_size=4)
    blocks = cache.open()
    cache.reserve(blocks, 5)
    cache.store(blocks, range(5), 5)
    cache.begin_step(1)
    other = cache.open()
    match = cache.match(other, range(5))
    cache.release(blocks)
    with pytest.raises(StaleMatch):
        cache.admit(other, match, 5)
    cache.check()


def test_steps_begin_and_land_in_order() -> None:
    """A step begins once, and lands after it began."""
    cache = KVCacheManager(num_blocks=1, block_size=4)
    with pytest.raises(StepOrderError, match="step 1 lands; begun: 0, landed: 0"):
        cache.land(1)
    cache.begin_step(1)
    with pytest.raises(StepOrderError, match="step 1 begins after step 1"):
        cache.begin_step(1)
    cache.land(1)
    with pytest.raises(StepOrderError):
        cache.land(1)
