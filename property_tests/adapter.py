"""What the suite asks of an allocator, and the adapter for Triolet's own.

To run the laws against another allocator, write a class with the methods of `Adapter` and name it:

    pytest property_tests --allocator package.module:YourAdapter

The suite creates one for each program it tries, with the keyword arguments below, and talks to nothing else. Handles
are whatever the adapter likes. What the allocator does not offer is named in `unsupported`; those methods are never
called (and need not exist), and the laws that need them are reported as not checked.
"""

import contextlib
import importlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol

from triolet.kvcache.errors import PinLimitExceeded
from triolet.kvcache.events import BlocksStored, CacheEvent
from triolet.kvcache.group import KVGroup
from triolet.kvcache.ids import BlockId
from triolet.kvcache.manager import KVCacheManager
from triolet.kvcache.pins import Pin
from triolet.kvcache.sequence import SequenceBlocks

FEATURES: dict[str, str] = {
    "prefix": "K5, K6, K11 (cached prefixes): match finds content that `store` indexed",
    "fork": "K3: sequences share a partial block, the first to write gets a copy",
    "truncate": "K10: a sequence becomes shorter",
    "limbo": "K9: steps are in flight while blocks are released",
    "window": "K12: sliding-window groups beside full-attention groups",
    "pin": "K13: prefixes are kept from eviction",
    "events": "K14: what is stored and evicted is told",
    "reset": "everything cached is forgotten",
}
"""What an adapter may declare unsupported, and the laws that are then not checked."""


class Adapter(Protocol):
    """An allocator of KV blocks, as the suite sees it. A block is a number; an entry that a window passed is None."""

    unsupported: ClassVar[frozenset[str]]
    """Keys of FEATURES."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        windows: tuple[int | None, ...],
        prefix_caching: bool,
        max_pinned_blocks: int,
    ) -> None:
        """An empty pool. `windows` holds the sliding window of each group, None for full attention.

        A query at position p of a group with window w sees the positions (p - w, p].
        """

    def open(self, salt: str) -> Any:
        """A handle that holds nothing. Sequences with different salts never share cached blocks."""

    def match(self, handle: Any, tokens: Sequence[int]) -> int:
        """How many leading tokens admission would find cached. Changes nothing."""

    def admit(self, handle: Any, tokens: Sequence[int], num_tokens: int) -> bool:
        """Take the cached prefix of `tokens` and cover positions [0, num_tokens). False: cannot, nothing changed."""

    def reserve(self, handle: Any, num_tokens: int) -> bool:
        """Cover [0, num_tokens). False: cannot, nothing changed.

        The positions not covered before are written in the next step, and so may be those up to the end of the last
        block in later ones, without asking again, until a fork or a truncate.
        """

    def store(self, handle: Any, tokens: Sequence[int], num_computed: int) -> None:
        """The content of positions [0, num_computed) has landed: its full blocks may be found by `match`."""

    def fork(self, handle: Any) -> Any:
        """A second handle that shares every block."""

    def truncate(self, handle: Any, num_tokens: int) -> None:
        """Cover [0, num_tokens) only."""

    def release(self, handle: Any) -> None:
        """Give everything back; the handle may be admitted again."""

    def tables(self, handle: Any) -> Sequence[Sequence[int | None]]:
        """The block table of each group, as it stands."""

    def take_copies(self) -> Sequence[tuple[int, int]]:
        """(source, target) of the copies due before the next step writes; read all sources before any target."""

    def begin_step(self, step: int) -> None:
        """The device has been given step `step` (1, 2, …)."""

    def land(self, step: int) -> None:
        """The device is through with it."""

    def num_available(self) -> int:
        """Blocks that an allocation could get now."""

    def pin(self, tokens: Sequence[int], salt: str, expires_at: float | None) -> Any | None:
        """Keep the cached prefix of `tokens`; None, and nothing changed, where that is over the limit."""

    def unpin(self, pin: Any) -> bool:
        """Give the pin up; False when it was gone already."""

    def expire(self, now: float) -> int:
        """Give up the pins with expires_at <= now; how many."""

    def reset(self) -> bool:
        """Forget everything cached, pins too; False, and nothing changed, while any block is owned or in limbo."""

    def events(self) -> Sequence[tuple[str, int, int]]:
        """("stored" or "evicted", group, block) in order, since the last call."""

    def check(self) -> None:
        """Raise if the allocator finds its own state broken. May do nothing."""


class TrioletAdapter:
    """Triolet's KVCacheManager."""

    unsupported: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        windows: tuple[int | None, ...],
        prefix_caching: bool,
        max_pinned_blocks: int,
    ) -> None:
        self._manager = KVCacheManager(
            num_blocks=num_blocks,
            block_size=block_size,
            groups=tuple(KVGroup(sliding_window=window) for window in windows),
            enable_prefix_caching=prefix_caching,
            max_pinned_blocks=max_pinned_blocks,
        )
        self._events: list[CacheEvent] = []
        self._manager.subscribe(self._events.append)

    def open(self, salt: str) -> SequenceBlocks:
        return self._manager.open(extra_keys=(salt,) if salt else ())

    def match(self, handle: SequenceBlocks, tokens: Sequence[int]) -> int:
        return self._manager.match(handle, tokens).num_tokens

    def admit(self, handle: SequenceBlocks, tokens: Sequence[int], num_tokens: int) -> bool:
        match = self._manager.match(handle, tokens)
        fits = self._manager.fits(match, num_tokens)
        admitted = self._manager.admit(handle, match, num_tokens)
        if admitted != fits:
            raise AssertionError(f"fits says {fits}, admit {admitted}")
        return admitted

    def reserve(self, handle: SequenceBlocks, num_tokens: int) -> bool:
        before = [list(table) for table in handle.tables]
        writes = self._manager.reserve(handle, num_tokens)
        if writes is None:
            return False
        told = {(group, index): block for group, index, block in writes}
        for group, table in enumerate(handle.tables):
            for index, block in enumerate(table):
                old = before[group][index] if index < len(before[group]) else None
                if block is not None and block != old and told.pop((group, index), None) != block:
                    raise AssertionError(
                        f"table[{group}][{index}] became {block}, which the writes {writes} do not say"
                    )
        if told or len(writes) != len({write[:2] for write in writes}):
            raise AssertionError(f"the writes {writes} say more than what changed")
        return True

    def store(self, handle: SequenceBlocks, tokens: Sequence[int], num_computed: int) -> None:
        self._manager.store(handle, tokens, num_computed)

    def fork(self, handle: SequenceBlocks) -> SequenceBlocks:
        return self._manager.fork(handle)

    def truncate(self, handle: SequenceBlocks, num_tokens: int) -> None:
        self._manager.truncate(handle, num_tokens)

    def release(self, handle: SequenceBlocks) -> None:
        self._manager.release(handle)

    def tables(self, handle: SequenceBlocks) -> list[list[BlockId | None]]:
        return [list(table) for table in handle.tables]

    def take_copies(self) -> list[tuple[BlockId, BlockId]]:
        return self._manager.take_copies()

    def begin_step(self, step: int) -> None:
        self._manager.begin_step(step)

    def land(self, step: int) -> None:
        self._manager.land(step)

    def num_available(self) -> int:
        return self._manager.num_free_blocks

    def pin(self, tokens: Sequence[int], salt: str, expires_at: float | None) -> Pin | None:
        try:
            return self._manager.pin(tokens, expires_at=expires_at, extra_keys=(salt,) if salt else ())
        except PinLimitExceeded:
            return None

    def unpin(self, pin: Pin) -> bool:
        return self._manager.unpin(pin)

    def expire(self, now: float) -> int:
        return self._manager.expire(now)

    def reset(self) -> bool:
        return self._manager.reset()

    def events(self) -> list[tuple[str, int, int]]:
        told = [
            ("stored" if isinstance(event, BlocksStored) else "evicted", event.group, int(block))
            for event in self._events
            for block in event.blocks
        ]
        self._events.clear()
        return told

    def check(self) -> None:
        self._manager.check()


operations: Counter[str] = Counter()
"""How many operations each machine has made, with all its laws checked after each; printed at the end of a run."""

_chosen: list[type[Adapter]] = []


def choose(path: str) -> None:
    """Run the suite against `package.module:Class`. ValueError says what is wrong with the path."""
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise ValueError(f"--allocator takes package.module:Adapter, not {path!r}")
    try:
        adapter = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--allocator {path}: {error}") from error
    unknown = sorted(set(getattr(adapter, "unsupported", ())) - set(FEATURES))
    if unknown:
        raise ValueError(f"--allocator {path}: unknown features {unknown}; there are {sorted(FEATURES)}")
    _chosen[:] = [adapter]


@contextlib.contextmanager
def using(path: str) -> Iterator[None]:
    """`choose`, for a while."""
    before = _chosen.copy()
    choose(path)
    try:
        yield
    finally:
        _chosen[:] = before


def chosen() -> type[Adapter]:
    """The adapter under test: Triolet's own unless `choose` named another."""
    return _chosen[0] if _chosen else TrioletAdapter


def supports(feature: str) -> bool:
    """Whether the adapter under test offers a key of FEATURES."""
    if feature not in FEATURES:
        raise KeyError(feature)
    return feature not in getattr(chosen(), "unsupported", ())
