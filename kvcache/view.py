"""A look at the pool for whoever draws it: each block's state, who owns it, what it holds.

It reads and never changes; it imports nothing but the room. The allocator does nothing for it: a look costs O(blocks
that are not free), and nothing while nobody looks. A look is consistent when it is taken between two operations.
"""

import enum
from collections.abc import Iterable, Sequence

import attrs

from .ids import BlockId
from .pool import BlockPool
from .prefix import Content, PrefixIndex

FREE, CACHED, LIMBO, SHARED, OWNED = range(5)
"""What a cell says of its block. Owned blocks have OWNED plus the number of their owner's colour."""

NUM_COLOURS = 11
"""So that a cell is one hexadecimal digit."""


class BlockState(enum.StrEnum):
    """K1's states, and of an owned block whether it has one owner or several."""

    FREE = "free"
    CACHED = "cached"
    LIMBO = "limbo"
    SHARED = "shared"
    OWNED = "owned"


@attrs.frozen(kw_only=True)
class BlockCounts:
    """`free + cached + owned + shared + limbo` is the number of blocks (K1); `pinned` are among the others."""

    free: int
    cached: int
    owned: int
    """With one owner."""
    shared: int
    limbo: int
    pinned: int


@attrs.frozen(kw_only=True)
class BlockSeen:
    """One block. What no index knows of its content (it is not full yet, or not stored) is not here."""

    block: BlockId
    state: BlockState
    refcount: int
    is_pinned: bool
    content_hash: bytes | None
    """Under which it can be found."""


class CacheView:
    """Over one pool and its index."""

    def __init__(self, pool: BlockPool, index: PrefixIndex, block_size: int) -> None:
        self._pool = pool
        self._index = index
        self._block_size = block_size

    def cells(self, tables: Iterable[tuple[int, Sequence[BlockId | None]]]) -> tuple[bytearray, BlockCounts]:
        """A cell for each block, and the counts of the states. `tables`: every block table there is, each with the
        colour of its owner (0 to NUM_COLOURS - 1)."""
        pool = self._pool
        refcounts = pool.refcounts
        cells = bytearray(pool.num_blocks)
        for block in pool.idle_blocks():
            cells[block] = CACHED
        for block in pool.limbo:
            cells[block] = LIMBO
        for colour, table in tables:
            code = OWNED + colour
            for held in table:
                if held is not None:
                    cells[held] = code if refcounts[held] == 1 else SHARED
        num_shared = cells.count(SHARED)
        counts = BlockCounts(
            free=pool.num_free,
            cached=pool.num_cached,
            owned=pool.num_owned - num_shared,
            shared=num_shared,
            limbo=len(pool.limbo),
            pinned=pool.num_pinned,
        )
        return cells, counts

    def refcount(self, block: BlockId) -> int:
        return self._pool.refcounts[block]

    def block(self, block: BlockId) -> BlockSeen:
        """One block as it is now. IndexError: there is no such block."""
        refcount = self._pool.refcounts[block]
        if refcount:
            state = BlockState.OWNED if refcount == 1 else BlockState.SHARED
        elif block in self._pool.limbo:
            state = BlockState.LIMBO
        else:
            state = BlockState.FREE if self._index.hashes[block] is None else BlockState.CACHED
        return BlockSeen(
            block=block,
            state=state,
            refcount=refcount,
            is_pinned=self._pool.is_pinned(block),
            content_hash=self._index.hashes[block],
        )

    def content(self, block: BlockId) -> Content | None:
        """What the index knows the block by; None when it is not indexed."""
        return self._index.content(block, self._block_size)
