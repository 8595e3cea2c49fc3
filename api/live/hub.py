"""Who watches: one sampler for all, one event held for each.

Imports trio. The sampler's task sleeps for ever while nobody watches, and stops the moment the last one leaves.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import trio

from ...engine.core.errors import Overloaded
from .sampler import Sampler
from .wire import LiveEvent

log = logging.getLogger(__name__)

INTERVAL_S = 0.1
SHARE_MAX = 0.02
"""Of the event loop's time: a sample that takes long is followed by a longer pause."""
WATCHERS_MAX = 64
"""Each costs a copy of every event to its socket."""

_encode = msgspec.json.Encoder().encode


def framed(event: LiveEvent) -> bytes:
    """As a server-sent event."""
    return b"data: " + _encode(event) + b"\n\n"


class Watcher:
    """One that watches: what it is sent next. It holds one event; where another comes before that was sent, both are
    dropped, and it gets a snapshot instead."""

    def __init__(self, snapshot: Callable[[], bytes | None]) -> None:
        self._snapshot = snapshot
        self._pending: bytes | None = None
        self._behind = True
        self._changed = trio.Event()
        self.ended = False

    def put(self, event: bytes | None) -> None:
        """`event` is a change; None: there was none, but there may be a first snapshot now."""
        if event is not None:
            if self._pending is not None:
                self._behind = True
            self._pending = None if self._behind else event
        if self._behind or self._pending is not None:
            self._changed.set()

    def end(self) -> None:
        self.ended = True
        self._changed.set()

    async def next(self) -> bytes | None:
        """The next event; None once it is over. Always a checkpoint."""
        await trio.lowlevel.checkpoint()
        while not self.ended:
            if self._behind:
                snapshot = self._snapshot()
                if snapshot is not None:
                    self._behind, self._pending = False, None
                    return snapshot
            elif self._pending is not None:
                event, self._pending = self._pending, None
                return event
            self._changed = trio.Event()
            await self._changed.wait()
        return None


class Hub:
    """Everyone who watches one engine."""

    def __init__(self, sampler: Sampler, *, cost_clock: Callable[[], float] = time.perf_counter) -> None:
        self._sampler = sampler
        self._cost_clock = cost_clock
        self._watchers: set[Watcher] = set()
        self._wanted = trio.Event()
        self._watched = trio.CancelScope()
        self._snapshot: bytes | None = None
        self._is_sampled = False
        self._is_closed = False
        self.num_samples = 0
        """Counter."""

    @property
    def num_watchers(self) -> int:
        return len(self._watchers)

    @contextmanager
    def watch(self) -> Iterator[Watcher]:
        """Be told until the block is left. Raises Overloaded where too many watch."""
        if len(self._watchers) >= WATCHERS_MAX:
            raise Overloaded(f"{WATCHERS_MAX} others watch already.", retry_after_s=10)
        watcher = Watcher(self._take_snapshot)
        if self._is_closed:
            watcher.end()
        self._watchers.add(watcher)
        self._wanted.set()
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)
            if not self._watchers:
                self._watched.cancel()

    def close(self) -> None:
        """Nobody is told anything any more: every stream ends."""
        self._is_closed = True
        for watcher in self._watchers:
            watcher.end()

    async def run(self) -> None:
        """Until cancelled. An error inside ends the streams of who watches, and nothing else."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            if not self._watchers:
                continue
            with trio.CancelScope() as self._watched:
                try:
                    await self._sample_on()
                except Exception:
                    log.exception("the live view failed")
                    for watcher in self._watchers:
                        watcher.end()

    async def _sample_on(self) -> None:
        try:
            with self._sampler.sampling():
                while True:
                    begun = self._cost_clock()
                    change = self._sampler.change()
                    self.num_samples += 1
                    self._is_sampled, self._snapshot = True, None
                    event = None if change is None else framed(change)
                    for watcher in self._watchers:
                        watcher.put(event)
                    seconds = self._cost_clock() - begun
                    await trio.sleep(max(INTERVAL_S, seconds / SHARE_MAX))
        finally:
            self._is_sampled, self._snapshot = False, None

    def _take_snapshot(self) -> bytes | None:
        """Made once for all who need it between two samples; None: nothing has been sampled yet."""
        if self._is_sampled and self._snapshot is None:
            self._snapshot = framed(self._sampler.snapshot())
        return self._snapshot
