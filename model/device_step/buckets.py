"""The sizes that steps are padded to: a graph is recorded for each.

Pure. Sizes lie close together where a step is short and padding would be felt, and wider apart where it is long.
"""

from bisect import bisect_left
from collections.abc import Sequence

MOST_PIECEWISE_TOKENS = 512
"""Mixed steps of more tokens run eagerly: they take so long that the launches hide behind the work."""


def decode_sizes(most: int) -> tuple[int, ...]:
    """Numbers of sequences, up to `most` itself."""
    sizes = [1, 2, 4, *range(8, 65, 8), *range(80, 257, 16), *range(320, most + 1, 64)]
    return (*(size for size in sizes if size < most), most)


def token_sizes(most: int) -> tuple[int, ...]:
    """Numbers of tokens of a mixed step, up to `most` itself or to where a graph no longer pays."""
    most = min(most, MOST_PIECEWISE_TOKENS)
    return (*(size for size in (16, 32, 64, 128, 192, 256, 384, 512) if size < most), most)


def choose(sizes: Sequence[int], count: int) -> int | None:
    """The smallest size that holds so many; None: none does. `sizes` rise."""
    at = bisect_left(sizes, count)
    return sizes[at] if at < len(sizes) else None
