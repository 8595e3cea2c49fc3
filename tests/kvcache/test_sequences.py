"""A sequence's life: open, match, admit, reserve, store, truncate, release."""

import pytest

from triolet.kvcache.errors import SequenceStateError, StaleMatch
from triolet.kvcache.manager import KVCacheManager
from triolet.kvcache.sequence import SequenceBlocks


def manager(num_blocks: int = 8, block_size: int = 4, *, enable_prefix_caching: bool = True) -> KVCacheManager:
    return KVCacheManager(num_blocks=num_blocks, block_size=block_size, enable_prefix_caching=enable_prefix_caching)


def admitted(cache: KVCacheManager, tokens: list[int], *, stored: bool = True) -> SequenceBlocks:
    """A sequence that holds its whole prompt, computed and indexed."""
    blocks = cache.open()
    assert cache.admit(blocks, cache.match(blocks, tokens), len(tokens))
    if stored:
        cache.store(blocks, tokens, len(tokens))
    cache.check()
    return blocks


def test_an_open_handle_holds_nothing() -> None:
    """Opening costs no block, and a handle that was never admitted need not be released."""
    cache = manager()
    blocks = cache.open()
    assert (blocks.num_tokens, blocks.tables) == (0, ([],))
    assert (cache.num_free_blocks, cache.num_sequences, cache.usage) == (8, 0, 0.0)


def test_admission_covers_the_tokens_and_no_block_more() -> None:
    """Nine tokens take three blocks of four."""
    cache = manager()
    blocks = admitted(cache, list(range(9)))
    assert blocks.tables == ([0, 1, 2],)
    assert (cache.num_free_blocks, cache.num_sequences, cache.usage) == (5, 1, 3 / 8)


def test_admission_may_cover_a_first_chunk_only() -> None:
    """A long prompt is admitted with the chunk that the next step computes."""
    cache = manager()
    blocks = cache.open()
    assert cache.admit(blocks, cache.match(blocks, range(30)), 5)
    assert len(blocks.tables[0]) == 2


def test_a_prompt_finds_the_blocks_of_an_earlier_one() -> None:
    """The full blocks of a stored prompt match, the partial one doesn't."""
    cache = manager()
    first = admitted(cache, list(range(10)))
    second = cache.open()
    match = cache.match(second, [*range(10), 77])
    assert match.num_tokens == 8
    assert cache.admit(second, match, 11)
    assert second.tables[0][:2] == first.tables[0][:2]


def test_a_match_leaves_a_token_to_compute() -> None:
    """A prompt that is cached to its last token matches one block less."""
    cache = manager()
    admitted(cache, list(range(8)))
    assert cache.match(cache.open(), list(range(8))).num_tokens == 4
    assert cache.match(cache.open(), list(range(9))).num_tokens == 8
    assert cache.match(cache.open(), []).num_tokens == 0


def test_extra_keys_keep_prompts_apart() -> None:
    """The same tokens under another salt, or a salt of another type, are another content."""
    cache = manager()
    blocks = cache.open(extra_keys=("a", 1))
    cache.admit(blocks, cache.match(blocks, range(9)), 9)
    cache.store(blocks, range(9), 9)
    for keys in ((), ("a",), ("a", "1"), ("a1",), (b"a", 1), ("b", 1)):
        assert cache.match(cache.open(extra_keys=keys), range(9)).num_tokens == 0
    assert cache.match(cache.open(extra_keys=("a", 1)), range(9)).num_tokens == 8


def test_an_extra_key_of_another_type_is_refused() -> None:
    """Only str, int and bytes have an encoding that no other value shares."""
    with pytest.raises(TypeError, match="an extra key is a str, an int or bytes, not float"):
        manager().open(extra_keys=(1.5,))  # type: ignore[arg-type]


def test_what_is_released_still_matches() -> None:
    """A finished sequence leaves its full blocks to the cache, and they count as free."""
    cache = manager()
    blocks = admitted(cache, list(range(9)))
    cache.release(blocks)
    cache.check()
    assert cache.num_free_blocks == 8
    assert cache.match(cache.open(), range(9)).num_tokens == 8


def test_the_tail_is_evicted_before_the_head() -> None:
    """When one block is needed, the prompt loses its last block first."""
    cache = manager(num_blocks=4)
    cache.release(admitted(cache, list(range(16))))
    admitted(cache, [90, 91], stored=False)
    assert cache.match(cache.open(), range(17)).num_tokens == 12


def test_without_caching_nothing_matches() -> None:
    """enable_prefix_caching=False indexes nothing and keeps nothing."""
    cache = manager(enable_prefix_caching=False)
    cache.release(admitted(cache, list(range(9))))
    assert cache.match(cache.open(), range(9)).num_tokens == 0
    assert cache.pin(range(9)).num_tokens == 0


def test_an_admission_that_cannot_be_met_changes_nothing() -> None:
    """Not even the matched blocks are taken."""
    cache = manager(num_blocks=4)
    cache.release(admitted(cache, list(range(9))))
    blocks = cache.open()
    match = cache.match(blocks, range(30))
    assert match.num_tokens == 8
    assert not cache.fits(match, 17)
    assert not cache.admit(blocks, match, 17)
    assert (blocks.tables, cache.num_free_blocks) == (([],), 4)
    assert cache.fits(match, 16)
    assert not cache.fits(match, 16, spare=1)
    assert cache.admit(blocks, match, 16)


def test_a_match_that_went_stale_is_refused() -> None:
    """Blocks evicted between match and admit are not taken for the prompt's."""
    cache = manager(num_blocks=2)
    cache.release(admitted(cache, list(range(5))))
    late = cache.open()
    match = cache.match(late, range(5))
    cache.release(admitted(cache, list(range(50, 58)), stored=False))
    with pytest.raises(StaleMatch, match="no longer holds block 0 of the prompt"):
        cache.admit(late, match, 5)
    cache.check()


def test_a_sequence_is_admitted_once_at_a_time() -> None:
    """Admitting a handle that holds blocks would leak them."""
    cache = manager()
    blocks = admitted(cache, list(range(9)))
    with pytest.raises(SequenceStateError, match="holds blocks already"):
        cache.admit(blocks, cache.match(blocks, range(9)), 9)
    with pytest.raises(ValueError, match="4 tokens are fewer than the 8 that matched"):
        cache.admit(cache.open(), cache.match(cache.open(), range(9)), 4)


def test_a_released_handle_may_be_admitted_again() -> None:
    """A preempted sequence keeps its handle, and finds what the cache still holds."""
    cache = manager()
    blocks = admitted(cache, list(range(9)))
    cache.release(blocks)
    cache.release(blocks)  # nothing left to give back
    match = cache.match(blocks, range(10))
    assert match.num_tokens == 8
    assert cache.admit(blocks, match, 10)
    cache.check()


def test_reserve_asks_for_a_block_at_a_boundary_only() -> None:
    """Within the last block nothing changes; past it the new entry is told."""
    cache = manager()
    blocks = admitted(cache, [1, 2, 3])
    assert cache.reserve(blocks, 4) == []
    assert cache.reserve(blocks, 5) == [(0, 1, 1)]
    assert cache.reserve(blocks, 2) == []
    assert blocks.num_tokens == 5
    assert blocks.writable_end == 8


def test_a_reserve_that_cannot_be_met_changes_nothing() -> None:
    """Too few blocks: None, and the table is as it was."""
    cache = manager(num_blocks=2)
    blocks = admitted(cache, [1, 2, 3])
    assert cache.reserve(blocks, 9) is None
    assert (blocks.tables, blocks.num_tokens, cache.num_free_blocks) == (([0],), 3, 1)


def test_a_sequence_may_grow_from_nothing() -> None:
    """Reserve on a handle without blocks is an admission without a match."""
    cache = manager()
    blocks = cache.open()
    assert cache.reserve(blocks, 5) == [(0, 0, 0), (0, 1, 1)]
    cache.check()
    cache.release(blocks)
    assert cache.num_sequences == 0


def test_the_same_content_is_indexed_once() -> None:
    """The second block of one content stays unindexed, and is free as soon as it is released."""
    cache = manager()
    first = admitted(cache, list(range(5)), stored=False)
    second = admitted(cache, list(range(5)), stored=False)
    cache.store(first, range(5), 5)
    cache.store(second, range(5), 5)
    cache.check()
    cache.release(second)
    assert cache.match(cache.open(), range(5)).tables == ([first.tables[0][0]],)


def test_what_was_written_without_asking_may_be_stored() -> None:
    """Up to writable_end a caller may write without reserve; store learns of it."""
    cache = manager()
    blocks = admitted(cache, [1])
    cache.store(blocks, [1, 2, 3, 4], 4)
    assert blocks.num_tokens == 4
    with pytest.raises(SequenceStateError, match="5 tokens computed, 4 covered"):
        cache.store(blocks, [1, 2, 3, 4, 5], 5)


def test_store_needs_the_tokens_it_indexes() -> None:
    """Fewer token ids than were computed are a mistake of the caller."""
    cache = manager()
    blocks = admitted(cache, list(range(8)), stored=False)
    with pytest.raises(ValueError, match="need more than 5 tokens"):
        cache.store(blocks, range(5), 8)


def test_truncate_gives_back_the_blocks_past_the_new_length() -> None:
    """From nine tokens to five: one block of three goes."""
    cache = manager()
    blocks = admitted(cache, list(range(9)), stored=False)
    cache.truncate(blocks, 5)
    assert (blocks.tables, blocks.num_tokens, cache.num_free_blocks) == (([0, 1],), 5, 6)
    cache.truncate(blocks, 0)
    cache.check()
    assert (cache.num_sequences, cache.num_free_blocks) == (0, 8)


def test_truncate_refuses_what_is_not_covered() -> None:
    """A sequence cannot be truncated to more than it has, nor to less than nothing."""
    cache = manager()
    blocks = admitted(cache, list(range(9)))
    for num_tokens in (13, -1):
        with pytest.raises(SequenceStateError, match=f"cannot truncate to {num_tokens} tokens, 9 are covered"):
            cache.truncate(blocks, num_tokens)


def test_other_tokens_after_a_truncate_are_another_content() -> None:
    """The hashes past the truncation are forgotten with it."""
    cache = manager()
    blocks = admitted(cache, list(range(8)))
    cache.truncate(blocks, 4)
    cache.reserve(blocks, 8)
    cache.store(blocks, [0, 1, 2, 3, 9, 9, 9, 9], 8)
    assert cache.match(cache.open(), [0, 1, 2, 3, 9, 9, 9, 9, 0]).num_tokens == 8
    assert cache.match(cache.open(), range(9)).num_tokens == 8


def test_writing_into_an_indexed_block_takes_it_out_of_the_index() -> None:
    """A lone owner that was truncated into a stored block writes in place: nobody can match it any more."""
    cache = manager(num_blocks=2)
    blocks = admitted(cache, list(range(8)))
    cache.truncate(blocks, 7)
    assert cache.match(cache.open(), range(9)).num_tokens == 8
    assert cache.reserve(blocks, 8) == []
    cache.check()
    assert cache.take_copies() == []
    assert cache.match(cache.open(), range(9)).num_tokens == 4
