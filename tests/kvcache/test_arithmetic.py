"""Sizes in bytes, blocks and sequences."""

import pytest

from triolet.kvcache.arithmetic import (
    block_bytes,
    longest_sequence,
    most_sequences,
    num_blocks_for,
    num_blocks_that_fit,
)
from triolet.kvcache.group import KVGroup
from triolet.kvcache.manager import KVCacheManager


def test_a_block_holds_keys_and_values_of_all_layers() -> None:
    """SmolLM2-135M in bfloat16: 30 layers of 3 heads of 64 take 360 KiB for 16 tokens."""
    size = block_bytes(num_layers=30, num_kv_heads=3, head_dim=64, element_bytes=2, block_size=16)
    assert size == 2 * 30 * 3 * 64 * 2 * 16 == 360 * 1024


def test_only_whole_blocks_fit() -> None:
    """The rest of the memory is left; less than a block is none."""
    assert num_blocks_that_fit(memory_bytes=1000, bytes_per_block=300) == 3
    assert num_blocks_that_fit(memory_bytes=299, bytes_per_block=300) == 0
    assert num_blocks_that_fit(memory_bytes=-5, bytes_per_block=300) == 0


def test_sequences_of_a_length() -> None:
    """Ten blocks hold three sequences of three blocks."""
    assert num_blocks_for(33, block_size=16) == 3
    assert most_sequences(num_blocks=10, num_tokens=33, block_size=16) == 3
    assert num_blocks_for(33, block_size=16, groups=(KVGroup(), KVGroup())) == 6


def test_the_longest_sequence_is_the_last_that_fits() -> None:
    """One token more needs a block that is not there; no more than what was asked about; 0 where none fits."""
    both = (KVGroup(), KVGroup(sliding_window=4))
    for groups in ((KVGroup(),), both):
        length = longest_sequence(num_blocks=10, most=1000, block_size=4, groups=groups)
        assert num_blocks_for(length, block_size=4, groups=groups) <= 10
        assert num_blocks_for(length + 1, block_size=4, groups=groups) > 10
    assert longest_sequence(num_blocks=10, most=5, block_size=4) == 5
    assert longest_sequence(num_blocks=1, most=5, block_size=4, groups=both) == 0


@pytest.mark.parametrize("block_size", [1, 2, 3, 5])
@pytest.mark.parametrize("window", [1, 2, 3, 4, 7, 20])
@pytest.mark.parametrize("step", [1, 2, 3, 8])
def test_a_window_needs_no_more_blocks_than_that(block_size: int, window: int, step: int) -> None:
    """A sequence that grows to 40 tokens in steps of one size fits, and leaves one block unused at most."""
    group = KVGroup(sliding_window=window)
    num_blocks = num_blocks_for(40, block_size=block_size, groups=(group,), max_step_tokens=step)
    most_held = 0
    for start in range(step):  # every alignment of the steps with the blocks
        cache = KVCacheManager(num_blocks=num_blocks, block_size=block_size, groups=(group,))
        blocks = cache.open()
        for num_tokens in [*range(start or step, 40, step), 40]:
            assert cache.reserve(blocks, num_tokens) is not None
            cache.check()
            most_held = max(most_held, cache.num_blocks - cache.num_free_blocks)
    assert num_blocks - 1 <= most_held <= num_blocks
