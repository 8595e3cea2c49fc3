"""The laws as plain properties of single operations: to be read, and to pass, before the machine of test_manager.py.

They go through the adapter (adapter.py) and are numbered like the laws there.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from . import adapter

pytestmark = pytest.mark.allocator

sizes = st.integers(1, 32)
lengths = st.integers(1, 100)
token_lists = st.lists(st.integers(0, 1), min_size=1, max_size=40)


def allocator(
    num_blocks: int, block_size: int, *, windows: tuple[int | None, ...] = (None,), max_pinned_blocks: int | None = None
) -> Any:
    return adapter.chosen()(
        num_blocks=num_blocks,
        block_size=block_size,
        windows=windows,
        prefix_caching=adapter.supports("prefix"),
        max_pinned_blocks=num_blocks if max_pinned_blocks is None else max_pinned_blocks,
    )


def admitted(cache: Any, tokens: list[int], salt: str = "") -> Any:
    handle = cache.open(salt)
    assert cache.admit(handle, tokens, len(tokens)), "K8: there are blocks enough"
    return handle


def stored(cache: Any, tokens: list[int], salt: str = "") -> Any:
    handle = admitted(cache, tokens, salt)
    cache.store(handle, tokens, len(tokens))
    return handle


@given(length=lengths, block_size=sizes)
def test_k7_a_table_has_just_enough_entries(length: int, block_size: int) -> None:
    """The last block has at least one of the sequence's tokens, and the rest is all that is wasted."""
    cache = allocator(100, block_size)
    (table,) = cache.tables(admitted(cache, [1] * length))
    assert len(table) * block_size - length in range(block_size)


@given(num_blocks=st.integers(1, 20), block_size=sizes, lengths=st.lists(lengths, max_size=6))
def test_k8_what_fits_is_met_and_what_does_not_changes_nothing(
    num_blocks: int, block_size: int, lengths: list[int]
) -> None:
    """Sequences that share nothing come until one does not fit; a smaller one still may."""
    cache = allocator(num_blocks, block_size)
    left = num_blocks
    for number, length in enumerate(lengths):
        needed = -(-length // block_size)
        assert cache.admit(cache.open(f"salt {number}"), [1] * length, length) == (needed <= left)
        left -= needed if needed <= left else 0
        assert cache.num_available() == left


@given(lengths=st.lists(lengths, min_size=1, max_size=6), block_size=sizes)
def test_k2_no_two_sequences_have_a_block_in_common(lengths: list[int], block_size: int) -> None:
    """Different contents are in different blocks, and nothing is named twice."""
    cache = allocator(600, block_size)
    handles = [admitted(cache, [1] * length, f"salt {number}") for number, length in enumerate(lengths)]
    blocks = [block for handle in handles for table in cache.tables(handle) for block in table]
    assert len(blocks) == len(set(blocks))


@given(lengths=st.lists(lengths, max_size=6), block_size=sizes)
def test_k11_everything_comes_back(lengths: list[int], block_size: int) -> None:
    """When all have gone, all blocks can be had again."""
    cache = allocator(600, block_size)
    for handle in [admitted(cache, [1] * length) for length in lengths]:
        cache.release(handle)
    assert cache.num_available() == 600


@pytest.mark.allocator("prefix")
@given(first=token_lists, second=token_lists, block_size=st.integers(1, 8))
def test_k5_a_prompt_matches_the_full_blocks_it_begins_with(
    first: list[int], second: list[int], block_size: int
) -> None:
    """The common beginning, in whole blocks, and never all of the prompt."""
    cache = allocator(100, block_size)
    cache.release(stored(cache, first))
    common = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    expected = min(common, len(second) - 1) // block_size * block_size
    assert cache.match(cache.open(""), second) == expected
    assert cache.match(cache.open("another salt"), second) == 0


@pytest.mark.allocator("prefix")
@given(num_full=st.integers(1, 8), num_needed=st.integers(0, 8), block_size=st.integers(1, 8))
def test_k6_a_cached_prompt_loses_its_tail_first(num_full: int, num_needed: int, block_size: int) -> None:
    """Whatever another sequence takes of a pool full of one prompt, what is left is its beginning."""
    num_needed = min(num_needed, num_full)
    cache = allocator(num_full, block_size)
    tokens = [1] * (num_full * block_size)
    cache.release(stored(cache, tokens))
    if num_needed:
        admitted(cache, [0] * (num_needed * block_size), "another salt")
    assert cache.match(cache.open(""), [*tokens, 0]) == (num_full - num_needed) * block_size


@pytest.mark.allocator("fork")
@given(start=lengths, length=lengths, block_size=sizes)
def test_k3_a_shared_partial_block_is_copied_once(start: int, length: int, block_size: int) -> None:
    """A fork takes no block; the first to write copies the partial one, the second writes in place; full ones stay."""
    cache = allocator(300, block_size)
    parent = admitted(cache, [1] * min(start, length))
    assert cache.reserve(parent, length)
    before = cache.num_available()
    child = cache.fork(parent)
    assert cache.num_available() == before
    (shared,) = cache.tables(parent)
    assert cache.reserve(child, length + 1)
    assert cache.reserve(parent, length + 1)
    (mine,), (theirs,) = cache.tables(parent), cache.tables(child)
    if length % block_size:
        assert list(cache.take_copies()) == [(shared[-1], theirs[-1])]
        assert list(mine) == list(shared)
        assert list(theirs[:-1]) == list(shared[:-1])
    else:
        assert not cache.take_copies()
        assert list(mine[:-1]) == list(theirs[:-1]) == list(shared)
    assert mine[-1] != theirs[-1]


@pytest.mark.allocator("fork", "truncate")
@given(block_size=st.integers(2, 32), length=lengths, generations=st.integers(1, 5))
def test_k3_a_copy_of_a_copy_reads_what_is_there(block_size: int, length: int, generations: int) -> None:
    """Forks of forks that all write in one step: every copy's source is a block that has its content already."""
    length += length % block_size == 0
    cache = allocator(300, block_size)
    handle = admitted(cache, [1] * length)
    (first,) = cache.tables(handle)
    filled = {first[-1]}
    for _ in range(generations):
        child = cache.fork(handle)
        assert cache.reserve(child, length + 1)
        cache.truncate(child, length)
        handle = child
    copies = cache.take_copies()
    assert len(copies) == generations
    assert {source for source, _ in copies} <= filled


@pytest.mark.allocator("truncate")
@given(length=lengths, kept=lengths, block_size=sizes)
def test_k10_truncate_gives_back_what_is_past_the_length(length: int, kept: int, block_size: int) -> None:
    """The kept entries are as they were, and exactly the others can be had again."""
    kept = min(kept, length)
    cache = allocator(100, block_size)
    handle = admitted(cache, [1] * length)
    (before,) = cache.tables(handle)
    cache.truncate(handle, kept)
    (after,) = cache.tables(handle)
    assert list(after) == list(before)[: -(-kept // block_size)]
    assert cache.num_available() == 100 - len(after)


@pytest.mark.allocator("limbo")
@given(num_steps=st.integers(1, 4), released_after=st.integers(1, 4), block_size=sizes)
def test_k9_a_release_waits_for_the_last_step_begun(num_steps: int, released_after: int, block_size: int) -> None:
    """The block is back with the landing of the last step that began before its release, not earlier and not later."""
    released_after = min(released_after, num_steps)
    cache = allocator(1, block_size)
    handle = admitted(cache, [1])
    for step in range(1, num_steps + 1):
        cache.begin_step(step)
        if step == released_after:
            cache.release(handle)
    for step in range(1, num_steps + 1):
        assert cache.num_available() == (step > released_after)
        cache.land(step)
    assert cache.num_available() == 1


@pytest.mark.allocator("window")
@given(window=st.integers(1, 20), block_size=st.integers(1, 8), lengths=st.lists(lengths, min_size=1, max_size=6))
def test_k12_a_window_keeps_what_the_next_query_sees(window: int, block_size: int, lengths: list[int]) -> None:
    """After growing past `start`, the first entry left is the one with position start - window + 1."""
    cache = allocator(1000, block_size, windows=(None, window))
    handle = cache.open("")
    assert cache.reserve(handle, 1)
    start = 1
    for length in lengths:
        assert cache.reserve(handle, start + length)
        full, windowed = cache.tables(handle)
        assert None not in full
        first = max(0, start - window + 1) // block_size
        assert [block is None for block in windowed] == [place < first for place in range(len(windowed))]
        start += length


@pytest.mark.allocator("prefix", "pin", "truncate")
@given(num_full=st.integers(1, 6), block_size=st.integers(1, 8), back=st.integers(1, 48))
def test_k13_a_pinned_block_is_not_written(num_full: int, block_size: int, back: int) -> None:
    """Its only owner is truncated into it and grows again, with other tokens: the pinned prompt still matches."""
    cache = allocator(20, block_size)
    tokens = [1] * (num_full * block_size)
    handle = stored(cache, tokens)
    assert cache.pin(tokens, "", None) is not None
    length = max(0, len(tokens) - back)
    cache.truncate(handle, length)
    assert cache.reserve(handle, len(tokens))
    other = [*tokens[:length], *[0] * (len(tokens) - length)]
    cache.store(handle, other, len(other))
    assert cache.match(cache.open(""), [*tokens, 1]) == len(tokens)
    assert cache.match(cache.open(""), [*other, 1]) == len(tokens)


@pytest.mark.allocator("prefix", "pin")
@given(expiries=st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=4), now=st.integers(0, 5))
def test_k13_a_prefix_is_kept_while_one_pin_is_left(expiries: list[int | None], now: int) -> None:
    """A block with several pins can be evicted when the last of them has expired, at its very time."""
    cache = allocator(2, 4)
    cache.release(stored(cache, [1] * 4))
    for expires_at in expiries:
        assert cache.pin([1] * 4, "", expires_at) is not None
    due = [expires_at for expires_at in expiries if expires_at is not None and expires_at <= now]
    assert cache.expire(now) == len(due)
    assert cache.num_available() == (1 if len(due) < len(expiries) else 2)


@pytest.mark.allocator("prefix", "pin")
@given(limit=st.integers(0, 6), lengths=st.lists(st.integers(0, 6), max_size=6))
def test_k13_pins_together_keep_to_their_limit(limit: int, lengths: list[int]) -> None:
    """Pins overlap: a block counts once, however often it is pinned, and a pin that is too much changes nothing."""
    cache = allocator(6, 2, max_pinned_blocks=limit)
    cache.release(stored(cache, [1] * 12))
    pins = []
    for length in lengths:
        pin = cache.pin([1] * (2 * length), "", None)
        assert (pin is not None) == (length <= limit)
        if pin is not None:
            pins.append((length, pin))
        most = max((length for length, _ in pins), default=0)
        assert cache.num_available() == 6 - most
    for _, pin in pins:
        assert cache.unpin(pin)
    assert cache.num_available() == 6


@pytest.mark.allocator("prefix", "pin", "reset", "limbo")
@given(num_pins=st.integers(0, 3), leaves_in_flight=st.booleans())
def test_k13_reset_forgets_pins_too_once_nothing_is_in_use(num_pins: int, leaves_in_flight: bool) -> None:
    """Refused while a block is owned or in limbo, and nothing has changed; then nothing matches and no pin is left."""
    cache = allocator(6, 2)
    handle = stored(cache, [1] * 5)
    pins = [cache.pin([1] * 4, "", 1.0) for _ in range(num_pins)]
    assert not cache.reset()
    if leaves_in_flight:
        cache.begin_step(1)
    cache.release(handle)
    if leaves_in_flight:
        assert not cache.reset()
        cache.land(1)
    assert cache.match(cache.open(""), [1] * 5) == 4
    assert cache.reset()
    cache.check()
    assert cache.match(cache.open(""), [1] * 5) == 0
    assert cache.num_available() == 6
    assert not any(cache.unpin(pin) for pin in pins)
    assert cache.expire(1.0) == 0


@pytest.mark.allocator("prefix", "limbo")
@given(num_full=st.integers(1, 5), block_size=st.integers(1, 8), owned=st.booleans())
def test_k9_what_is_in_limbo_does_not_match(num_full: int, block_size: int, owned: bool) -> None:
    """A prompt released with a step in flight matches once that has landed, and before only where another owns it."""
    cache = allocator(20, block_size)
    tokens = [1] * (num_full * block_size + 1)
    handle = stored(cache, tokens)
    if owned:
        other = admitted(cache, tokens)
    cache.begin_step(1)
    cache.release(handle)
    assert cache.match(cache.open(""), tokens) == (len(tokens) - 1 if owned else 0)
    cache.land(1)
    assert cache.match(cache.open(""), tokens) == len(tokens) - 1
    if owned:
        cache.release(other)
    assert cache.num_available() == 20
