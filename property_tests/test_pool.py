"""The laws of the bare pool (kvcache/pool.py), beside a model that keeps plain lists.

K1  each block is free, cached, owned or in limbo, and the four numbers add up
K2  a block is owned while its references are not all released; one release too many raises DoubleFree
K6  free blocks are handed out before cached ones are evicted, and those in the order of their release
K8  `allocate` gives exactly what was asked for, or None and nothing is changed
K9  what is released with steps in flight comes back with the landing of the last one begun before, in that order
K13 a pinned block is not handed out, and joins the eviction order when its last pin goes
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from triolet.kvcache.errors import DoubleFree, StaleMatch, StepOrderError
from triolet.kvcache.ids import BlockId
from triolet.kvcache.pool import BlockPool

from .adapter import operations


def bare_pool(num_blocks: int) -> tuple[BlockPool, list[str | None]]:
    contents: list[str | None] = [None] * num_blocks

    def evict(block: BlockId) -> None:
        contents[block] = None

    return BlockPool(num_blocks, contents=contents, evict=evict), contents


@given(num_blocks=st.integers(1, 50), counts=st.lists(st.integers(0, 20), max_size=8))
def test_k8_an_allocation_is_met_whole_or_not_at_all(num_blocks: int, counts: list[int]) -> None:
    """Blocks come while there are enough, each once; then None comes, and leaves what was there."""
    pool, _ = bare_pool(num_blocks)
    taken: list[BlockId] = []
    for count in counts:
        available = pool.num_available
        blocks = pool.allocate(count)
        assert (blocks is not None) == (count <= available)
        assert pool.num_available == available - len(blocks or ())
        assert len(blocks or ()) in (0, count)
        taken += blocks or []
    assert len(set(taken)) == len(taken)
    pool.check()


@given(order=st.permutations(range(6)), count=st.integers(0, 6))
def test_k6_cached_blocks_are_evicted_in_the_order_of_their_release(order: list[int], count: int) -> None:
    """Blocks with content leave in the order in which they came, whatever their numbers."""
    pool, contents = bare_pool(6)
    blocks = pool.allocate(6) or []
    for block in blocks:
        contents[block] = "kept"
    pool.release([blocks[place] for place in order])
    assert pool.allocate(count) == [blocks[place] for place in order][:count]
    assert [content for content in contents if content is None] == [None] * count


@given(num_blocks=st.integers(1, 8), block=st.integers(0, 7))
def test_k2_a_release_too_many_raises(num_blocks: int, block: int) -> None:
    """A block that nobody owns cannot be released."""
    pool, _ = bare_pool(num_blocks)
    with pytest.raises(DoubleFree, match=f"block {block % num_blocks}"):
        pool.release([BlockId(block % num_blocks)])
    pool.check()


class PoolMachine(RuleBasedStateMachine):
    """A pool, its contents, and lists."""

    @initialize(num_blocks=st.integers(1, 12))
    def build(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.pool, self.contents = bare_pool(num_blocks)
        self.held: list[BlockId] = []
        """One entry for each reference."""
        self.cached: list[BlockId] = []
        self.kept: set[BlockId] = set()
        self.limbo: list[tuple[BlockId, int]] = []
        self.pins: list[list[BlockId]] = []
        self.begun = self.landed = 0

    @rule(count=st.integers(0, 6))
    def allocate(self, count: int) -> None:
        num_free = self._num_free()
        blocks = self.pool.allocate(count)
        if count > num_free + len(self.cached):
            assert blocks is None, "K8: more blocks than there are"
            return
        assert blocks is not None, "K8: the blocks are there"
        assert len(blocks) == len(set(blocks)) == count, f"K8: {count} blocks are {blocks}"
        num_evicted = max(0, count - num_free)
        expected, self.cached = self.cached[:num_evicted], self.cached[num_evicted:]
        elsewhere = {*self.held, *self.cached, *self.kept, *(block for block, _ in self.limbo)}
        assert not elsewhere & set(blocks), f"K1, K2, K9, K13: {blocks} are not all to be had"
        assert blocks[count - num_evicted :] == expected, f"K6: {blocks} where {expected} are least recently used"
        assert all(self.contents[block] is None for block in blocks), "K6: an evicted block keeps its content"
        self.held += blocks

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99))
    def fill(self, which: int) -> None:
        """An owned block gets content that is worth keeping."""
        self.contents[self.held[which % len(self.held)]] = "kept"

    @rule(number=st.integers(0, 11))
    def acquire(self, number: int) -> None:
        block = BlockId(number % self.num_blocks)
        if block in self.held or block in self.cached or block in self.kept:
            self.pool.acquire([block])
            self.held.append(block)
            self.kept.discard(block)
            if block in self.cached:
                self.cached.remove(block)
        else:
            with pytest.raises(StaleMatch):
                self.pool.acquire([block])

    @precondition(lambda self: self.held)
    @rule(places=st.lists(st.integers(0, 99), min_size=1, max_size=4))
    def release(self, places: list[int]) -> None:
        blocks = [self.held.pop(place % len(self.held)) for place in places[: len(self.held)]]
        dead = list(dict.fromkeys(block for block in blocks if block not in self.held))
        told = self.pool.release(blocks)
        # A block named twice dies at the second time: compare as sets, and the order where nothing is named twice.
        assert set(told) == set(dead), f"K2: {told} died, {dead} have no reference left"
        if len(set(blocks)) == len(blocks):
            assert told == dead, "K6: the order of release"
        for block in told:
            if self.begun > self.landed:
                self.limbo.append((block, self.begun))
            else:
                self._settle(block)

    def _settle(self, block: BlockId) -> None:
        if self.contents[block] is not None:
            if any(block in pin for pin in self.pins):
                self.kept.add(block)
            else:
                self.cached.append(block)

    @rule(skipped=st.integers(0, 2))
    def begin_step(self, skipped: int) -> None:
        self.begun += 1 + skipped
        self.pool.begin_step(self.begun)

    @precondition(lambda self: self.begun > self.landed)
    @rule(back=st.integers(0, 9))
    def land(self, back: int) -> None:
        self.landed = max(self.landed + 1, self.begun - back)
        self.pool.land(self.landed)
        landed = [block for block, step in self.limbo if step <= self.landed]
        self.limbo = [(block, step) for block, step in self.limbo if step > self.landed]
        for block in landed:
            self._settle(block)

    @rule()
    def steps_keep_their_order(self) -> None:
        for step in (self.begun, self.begun - 1):
            with pytest.raises(StepOrderError):
                self.pool.begin_step(step)
        for step in (self.landed, self.begun + 1):
            with pytest.raises(StepOrderError):
                self.pool.land(step)

    @precondition(lambda self: any(self.contents))
    @rule(places=st.lists(st.integers(0, 99), min_size=1, max_size=3))
    def pin(self, places: list[int]) -> None:
        limbo = {block for block, _ in self.limbo}
        indexed = [block for block, content in enumerate(self.contents) if content and block not in limbo]
        if indexed:
            blocks = list(dict.fromkeys(BlockId(indexed[place % len(indexed)]) for place in places))
            self.pool.pin(blocks)
            self.pins.append(blocks)
            self.kept |= {block for block in blocks if block in self.cached}
            self.cached = [block for block in self.cached if block not in blocks]

    @precondition(lambda self: self.pins)
    @rule(which=st.integers(0, 99))
    def unpin(self, which: int) -> None:
        blocks = self.pins.pop(which % len(self.pins))
        self.pool.unpin(blocks)
        for block in blocks:
            if block in self.kept and not any(block in pin for pin in self.pins):
                self.kept.remove(block)
                self.cached.append(block)

    @precondition(lambda self: self.begun % 3 == 0)
    @rule()
    def reset(self) -> None:
        quiet = not self.held and not self.limbo
        assert self.pool.reset() == quiet
        if quiet:
            self.cached, self.kept, self.pins = [], set(), []
            assert not any(self.contents), "reset leaves content"

    def _num_free(self) -> int:
        return self.num_blocks - len(set(self.held)) - len(self.cached) - len(self.kept) - len(self.limbo)

    @invariant()
    def laws(self) -> None:
        """K1, K2 and K13 as numbers."""
        operations["pool"] += 1
        pool = self.pool
        assert pool.num_free == self._num_free(), "K1: free"
        assert pool.num_cached == len(self.cached) + len(self.kept), "K1: cached"
        assert pool.num_owned == len(set(self.held)), "K1: owned"
        assert dict(pool.limbo) == dict(self.limbo), "K9: limbo"
        assert pool.num_available == self._num_free() + len(self.cached), "K1: available"
        assert pool.in_flight == (self.begun > self.landed)
        for number in range(self.num_blocks):
            block = BlockId(number)
            assert pool.refcounts[block] == self.held.count(block), f"K2: references to block {block}"
            assert pool.is_evictable(block) == (block in self.cached)
            assert pool.is_pinned(block) == any(block in pin for pin in self.pins), "K13: pinned"
        assert pool.num_pinned == len({block for pin in self.pins for block in pin}), "K13: number pinned"
        pool.check()


PoolMachine.TestCase.settings = settings(max_examples=5 * settings().max_examples)
TestPool = PoolMachine.TestCase
