"""The blocks: who holds each, which can be had, and in which order cached ones are given up.

A block is in exactly one state (K1):

    FREE    held by nobody, content worthless              ──allocate──▶ OWNED
    CACHED  held by nobody, content indexed                ──allocate──▶ OWNED (evicted) ; ──acquire──▶ OWNED (a hit)
    OWNED   named by `refcount` block-table entries (K2)   ──release──▶ LIMBO with a step in flight, else FREE or CACHED
    LIMBO   held by nobody, but a step in flight may still name it ──land──▶ FREE or CACHED

A cached block that is pinned is not in the eviction queue. The pool does not know what content is: it looks into
`contents` (None: worthless) and calls `evict` before it gives an indexed block away. Free blocks go before cached ones,
so nothing is evicted without need; cached ones go least recently used first (K6), in the order of their release.
Every operation is O(blocks named in the call); nothing scans the pool but `check`, `reset` and the constructor.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

from .errors import DoubleFree, LawBroken, StaleMatch, StepOrderError
from .ids import BlockId


class BlockPool:
    """Counts references and hands out blocks; see the module's docstring for the states.

    `contents[b]` is what block b keeps, None when it is worth nothing; the pool reads it and never writes it.
    `evict(b)` must make `contents[b]` None.
    """

    def __init__(self, num_blocks: int, *, contents: Sequence[object], evict: Callable[[BlockId], None]) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool has at least one block, not {num_blocks}")
        self.num_blocks = num_blocks
        self.refcounts = [0] * num_blocks
        """Read-only to others."""
        self.limbo: OrderedDict[BlockId, int] = OrderedDict()
        """Block -> the step whose landing frees it, in the order of release. Read-only to others."""
        self._contents = contents
        self._evict = evict
        # A stack, lowest number on top, so that a fresh pool hands out 0, 1, 2, …
        self._free = [BlockId(block) for block in range(num_blocks - 1, -1, -1)]
        # OrderedDict is a doubly linked list in C: append, take the oldest, take one out of the middle, each O(1).
        self._cached: OrderedDict[BlockId, None] = OrderedDict()
        self._pin_counts: dict[BlockId, int] = {}
        self._pinned_idle: set[BlockId] = set()
        self._last_begun = 0
        self._last_landed = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Cached blocks, the pinned ones among them included."""
        return len(self._cached) + len(self._pinned_idle)

    def idle_blocks(self) -> Iterator[BlockId]:
        """The cached blocks, the pinned ones among them last."""
        yield from self._cached
        yield from self._pinned_idle

    @property
    def num_available(self) -> int:
        """What `allocate` can hand out now."""
        return len(self._free) + len(self._cached)

    @property
    def num_owned(self) -> int:
        return self.num_blocks - len(self._free) - len(self._cached) - len(self._pinned_idle) - len(self.limbo)

    @property
    def num_pinned(self) -> int:
        """Blocks with at least one pin, whatever their state."""
        return len(self._pin_counts)

    @property
    def in_flight(self) -> bool:
        return self._last_begun != self._last_landed

    def is_pinned(self, block: BlockId) -> bool:
        return block in self._pin_counts

    def is_evictable(self, block: BlockId) -> bool:
        """Cached and not pinned: it counts as available, and a hit takes it out of what is available."""
        return block in self._cached

    def allocate(self, count: int) -> list[BlockId] | None:
        """`count` blocks with refcount 1 for the caller alone, or None and nothing changed (K8)."""
        free = self._free
        refcounts = self.refcounts
        if count == 1 and free:
            block = free.pop()
            refcounts[block] = 1
            return [block]
        from_free = min(count, len(free))
        if count - from_free > len(self._cached):
            return None
        taken = free[len(free) - from_free :]
        taken.reverse()
        del free[len(free) - from_free :]
        for _ in range(count - from_free):
            block, _none = self._cached.popitem(last=False)
            self._evict(block)
            taken.append(block)
        for block in taken:
            refcounts[block] = 1
        return taken

    def acquire(self, blocks: Iterable[BlockId]) -> None:
        """One more reference to each: a hit on a cached block, or a share of an owned one."""
        refcounts, cached = self.refcounts, self._cached
        for block in blocks:
            if not refcounts[block]:
                if block in cached:
                    del cached[block]
                elif block in self._pinned_idle:
                    self._pinned_idle.remove(block)
                else:
                    raise StaleMatch(f"block {block} is neither owned nor cached")
            refcounts[block] += 1

    def release(self, blocks: Iterable[BlockId]) -> list[BlockId]:
        """One reference less to each, first to be evicted first. Returns those that nobody holds now."""
        refcounts = self.refcounts
        dead = []
        for block in blocks:
            count = refcounts[block]
            if count == 1:
                dead.append(block)
            elif not count:
                self._retire(dead)
                raise DoubleFree(f"block {block} is owned by nobody")
            refcounts[block] = count - 1
        self._retire(dead)
        return dead

    def _retire(self, dead: list[BlockId]) -> None:
        if self._last_begun != self._last_landed:
            step = self._last_begun
            for block in dead:
                self.limbo[block] = step
        else:
            self._settle(dead)

    def _settle(self, blocks: Iterable[BlockId]) -> None:
        contents, free, cached, pins = self._contents, self._free, self._cached, self._pin_counts
        for block in blocks:
            if contents[block] is None:
                free.append(block)
            elif block in pins:
                self._pinned_idle.add(block)
            else:
                cached[block] = None

    def begin_step(self, step: int) -> None:
        """The device was told about `step`: what is released from now on waits for it (K9)."""
        if step <= self._last_begun:
            raise StepOrderError(f"step {step} begins after step {self._last_begun}")
        self._last_begun = step

    def land(self, step: int) -> None:
        """The device is through with `step` and every one before it."""
        if not self._last_landed < step <= self._last_begun:
            raise StepOrderError(f"step {step} lands; begun: {self._last_begun}, landed: {self._last_landed}")
        self._last_landed = step
        limbo = self.limbo
        landed = []
        while limbo:
            block = next(iter(limbo))
            if limbo[block] > step:
                break
            del limbo[block]
            landed.append(block)
        self._settle(landed)

    def pin(self, blocks: Iterable[BlockId]) -> None:
        """Keep these indexed blocks from eviction until they are unpinned as often as pinned."""
        for block in blocks:
            self._pin_counts[block] = self._pin_counts.get(block, 0) + 1
            if block in self._cached:
                del self._cached[block]
                self._pinned_idle.add(block)

    def unpin(self, blocks: Iterable[BlockId]) -> None:
        """Undo one `pin` of each, in the order in which they are to be evicted."""
        for block in blocks:
            count = self._pin_counts[block]
            if count > 1:
                self._pin_counts[block] = count - 1
                continue
            del self._pin_counts[block]
            if block in self._pinned_idle:
                self._pinned_idle.remove(block)
                self._cached[block] = None

    def reset(self) -> bool:
        """Evict all that is cached, pins included; False and nothing changed while a block is owned or in limbo."""
        if self.num_owned or self.limbo:
            return False
        self._pin_counts.clear()
        for block in (*self._cached, *self._pinned_idle):
            self._evict(block)
            self._free.append(block)
        self._cached.clear()
        self._pinned_idle.clear()
        return True

    def check(self) -> None:
        """Assert K1, K2 (no count below 0) and K9 over the whole pool. O(num_blocks)."""
        states: dict[BlockId, str] = {}
        for name, blocks in (
            ("free", self._free),
            ("cached", self._cached),
            ("pinned", self._pinned_idle),
            ("limbo", self.limbo),
        ):
            for block in blocks:
                if block in states:
                    raise LawBroken("K1", f"block {block} is {states[block]} and {name}")
                states[block] = name
        for number, refcount in enumerate(self.refcounts):
            state = states.get(BlockId(number), "owned")
            if refcount < 0 or (refcount > 0) != (state == "owned"):
                raise LawBroken("K1", f"block {number} is {state} with refcount {refcount}")
            keeps = self._contents[number] is not None
            if state in ("free", "cached", "pinned") and keeps != (state != "free"):
                raise LawBroken("K1", f"block {number} is {state}, content indexed: {keeps}")
            if state in ("cached", "pinned") and (state == "pinned") != (number in self._pin_counts):
                raise LawBroken("K13", f"block {number} is {state}, pins: {self._pin_counts.get(BlockId(number), 0)}")
        if self.num_free + self.num_cached + self.num_owned + len(self.limbo) != self.num_blocks:
            raise LawBroken("K1", "free + cached + owned + limbo is not the number of blocks")
        tags = list(self.limbo.values())
        if tags != sorted(tags) or any(not self._last_landed < tag <= self._last_begun for tag in tags):
            raise LawBroken("K9", f"limbo waits for {tags}; begun {self._last_begun}, landed {self._last_landed}")

    def pin_counts(self) -> dict[BlockId, int]:
        """How often each block is pinned, for checks."""
        return dict(self._pin_counts)
