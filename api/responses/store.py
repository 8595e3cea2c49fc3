"""Responses that have ended, in memory: bounded by bytes and by age, each for the caller who asked for it alone.

Pure: the time comes in as an argument. A response that continues another names it and holds its own items only, so a
conversation of many turns is stored once. Whoever continues a conversation keeps all of it alive: every response of the
chain counts as just used. What is used longest ago goes first; where a chain's beginning has gone, or was deleted, its
end can be read but no longer continued.
"""

from collections import OrderedDict

import attrs

from ...engine.core.errors import InvalidRequest
from ..errors import NotFound

OVERHEAD_BYTES = 1024
"""About what an entry costs beside its texts."""

MAX_TURNS = 1024
"""Most responses of a conversation that are put together for one request: each is read anew."""

Key = tuple[str, str]
"""A caller, and the id of a response."""


@attrs.frozen(kw_only=True)
class Stored:
    """A response as its caller may read it, and what a continuation needs of it. All JSON."""

    body: bytes
    input_items: bytes
    """A list: what the request said, without what it continued."""
    output_items: bytes
    """A list: what was answered."""
    previous: str | None = None

    @property
    def num_bytes(self) -> int:
        return OVERHEAD_BYTES + len(self.body) + len(self.input_items) + len(self.output_items)


@attrs.define
class _Entry:
    stored: Stored
    used_s: float


class ResponseStore:
    """The stored responses of a server. Every call is O(entries touched)."""

    def __init__(self, *, max_bytes: int, max_age_s: float) -> None:
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        """Used longest ago first."""
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: Key, stored: Stored, *, now_s: float) -> bool:
        """Keep a response, at the cost of others. False where it alone is more than fits."""
        self.forget_old(now_s=now_s)
        self.delete(key)
        if stored.num_bytes > self._max_bytes:
            return False
        self._entries[key] = _Entry(stored, now_s)
        self.num_bytes += stored.num_bytes
        while self.num_bytes > self._max_bytes:
            self.delete(next(iter(self._entries)))
        return True

    def get(self, key: Key, *, now_s: float) -> Stored | None:
        """Reading makes nothing younger."""
        self.forget_old(now_s=now_s)
        entry = self._entries.get(key)
        return None if entry is None else entry.stored

    def delete(self, key: Key) -> bool:
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self.num_bytes -= entry.stored.num_bytes
        return True

    def chain(self, caller: str, response_id: str, *, now_s: float) -> list[Stored]:
        """A response and all that it continues, in order. Raises NotFound naming the one that is missing, or
        InvalidRequest for more of them than are put together.

        All of them count as used now.
        """
        self.forget_old(now_s=now_s)
        keys: list[Key] = []
        wanted: str | None = response_id
        while wanted is not None:
            entry = self._entries.get((caller, wanted))
            if entry is None:
                gone = "" if wanted == response_id else f" ({response_id[:128]!r} continues it)"
                raise NotFound(
                    f"There is no response {wanted[:128]!r}{gone}: it was never stored, or has been deleted or let go.",
                    param="previous_response_id",
                )
            if len(keys) == MAX_TURNS:
                raise InvalidRequest(
                    f"The response {response_id[:128]!r} ends a conversation of {MAX_TURNS} stored turns: no more are "
                    "put together. Send the conversation as input.",
                    param="previous_response_id",
                )
            keys.append((caller, wanted))
            wanted = entry.stored.previous
        for key in keys:  # The beginning last: where a chain must go, its end goes before what it needs.
            self._entries[key].used_s = now_s
            self._entries.move_to_end(key)
        return [self._entries[key].stored for key in reversed(keys)]

    def forget_old(self, *, now_s: float) -> None:
        """Let go what was not used for the time that it may be kept."""
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if now_s - entry.used_s <= self._max_age_s:
                return
            self.delete(key)

    @property
    def next_age_s(self) -> float | None:
        """The moment at which the next one is too old; None while there is none."""
        if not self._entries:
            return None
        return next(iter(self._entries.values())).used_s + self._max_age_s
