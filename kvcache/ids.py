"""The number of a KV block, its own type so that it is not taken for a token or a position."""

from typing import NewType

BlockId = NewType("BlockId", int)
"""A block of the pool, `0 <= id < num_blocks`."""
