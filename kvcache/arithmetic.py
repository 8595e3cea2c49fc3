"""Sizes: how many bytes a block takes, how many blocks fit, how many sequences they serve. Units are in the names."""

from .group import KVGroup


def block_bytes(*, num_layers: int, num_kv_heads: int, head_dim: int, element_bytes: int, block_size: int) -> int:
    """Bytes of K and V that one block holds, over `num_layers` layers.

    With several groups a block serves the layers of one group: pass the number of layers of the largest group.
    """
    return 2 * num_layers * num_kv_heads * head_dim * element_bytes * block_size


def num_blocks_that_fit(*, memory_bytes: int, bytes_per_block: int) -> int:
    """Whole blocks in the memory; 0 when not one fits."""
    return max(0, memory_bytes // bytes_per_block)


def num_blocks_for(
    num_tokens: int, *, block_size: int, groups: tuple[KVGroup, ...] = (KVGroup(),), max_step_tokens: int | None = None
) -> int:
    """Most blocks that one sequence holds at once while it grows to `num_tokens`, at most `max_step_tokens` in a step.

    A pool of that many blocks runs the sequence alone when each step is planned after the one before has landed. A
    sliding window holds what the first token of a step sees and what the step writes; both ends may cut a block.
    """
    step = num_tokens if max_step_tokens is None else min(num_tokens, max_step_tokens)
    total = 0
    for group in groups:
        needed = -(-num_tokens // block_size)
        if group.sliding_window is not None:
            needed = min(needed, -(-(group.sliding_window - 2 + step) // block_size) + 1)
        total += needed
    return total


def longest_sequence(*, num_blocks: int, most: int, block_size: int, groups: tuple[KVGroup, ...] = (KVGroup(),)) -> int:
    """Tokens of the longest sequence that `num_blocks` blocks hold alone, `most` at most; 0: none fits."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        fits = num_blocks_for(middle, block_size=block_size, groups=groups) <= num_blocks
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def most_sequences(
    *,
    num_blocks: int,
    num_tokens: int,
    block_size: int,
    groups: tuple[KVGroup, ...] = (KVGroup(),),
    max_step_tokens: int | None = None,
) -> int:
    """Sequences of `num_tokens` tokens, none shared, that `num_blocks` blocks hold at once."""
    return num_blocks // num_blocks_for(
        num_tokens, block_size=block_size, groups=groups, max_step_tokens=max_step_tokens
    )
