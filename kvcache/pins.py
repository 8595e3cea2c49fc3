"""Pins: prefixes that are kept from eviction until a time, under a limit."""

import heapq

import attrs

from .errors import PinLimitExceeded
from .ids import BlockId
from .pool import BlockPool
from .sequence import PrefixMatch


@attrs.frozen(kw_only=True, eq=False)
class Pin:
    """A prefix that is kept. Give it back with `unpin`; two pins of one prefix are two pins."""

    num_tokens: int
    """How much of the prefix was indexed when it was pinned, and is kept: a multiple of the block size."""
    expires_at: float | None
    """In the time of whoever calls `expire`; None: never."""
    blocks: tuple[BlockId, ...] = attrs.field(repr=False)
    """In the order in which they are to be evicted once unpinned: the tail first."""


class Pins:
    """The pins in force. At most `max_blocks` different blocks are pinned."""

    def __init__(self, pool: BlockPool, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self._pool = pool
        self._pins: set[Pin] = set()
        # Pins that were given up early stay here until their time; they are told by not being in the set.
        self._expiries: list[tuple[float, int, Pin]] = []
        self._num_added = 0

    def __len__(self) -> int:
        return len(self._pins)

    def add(self, match: PrefixMatch, expires_at: float | None) -> Pin:
        rows = zip(*(reversed(table) for table in match.tables), strict=True)
        blocks = tuple(block for row in rows for block in row if block is not None)
        pool = self._pool
        num_added = sum(not pool.is_pinned(block) for block in blocks)
        if pool.num_pinned + num_added > self.max_blocks:
            raise PinLimitExceeded(
                f"the prefix takes {num_added} blocks more; {pool.num_pinned} of {self.max_blocks} are pinned"
            )
        pin = Pin(num_tokens=match.num_tokens, expires_at=expires_at, blocks=blocks)
        pool.pin(blocks)
        self._pins.add(pin)
        if expires_at is not None:
            self._num_added += 1
            heapq.heappush(self._expiries, (expires_at, self._num_added, pin))
        return pin

    def remove(self, pin: Pin) -> bool:
        if pin not in self._pins:
            return False
        self._pins.remove(pin)
        self._pool.unpin(pin.blocks)
        return True

    def expire(self, now: float) -> int:
        count = 0
        while self._expiries and self._expiries[0][0] <= now:
            count += self.remove(heapq.heappop(self._expiries)[2])
        return count

    def clear(self) -> None:
        """The pool has forgotten every pin."""
        self._pins.clear()
        self._expiries.clear()

    def counts(self) -> dict[BlockId, int]:
        """How often each block is pinned, for checks."""
        counts: dict[BlockId, int] = {}
        for pin in self._pins:
            for block in pin.blocks:
                counts[block] = counts.get(block, 0) + 1
        return counts
