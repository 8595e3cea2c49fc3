"""How long writes may wait: for a socket, or for the window of an HTTP/2 stream."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import trio


@attrs.define(kw_only=True, eq=False)
class WritePolicy:
    """For all connections of a server."""

    timeout_s: float
    deadline_s: float = math.inf
    """The moment after which no write waits any more: set when the server stops."""
    blocked: set[trio.CancelScope] = attrs.field(factory=set)

    def end_at(self, deadline_s: float) -> None:
        """No write, begun or to come, waits past this moment."""
        self.deadline_s = min(self.deadline_s, deadline_s)
        for scope in self.blocked:
            scope.deadline = min(scope.deadline, self.deadline_s)

    @contextmanager
    def waiting(self, deadline_s: float) -> Iterator[trio.CancelScope]:
        """A scope to wait in, shielded: a cancellation must not leave half an event behind."""
        scope = trio.CancelScope(shield=True, deadline=min(deadline_s, self.deadline_s))
        self.blocked.add(scope)
        try:
            with scope:
                yield scope
        finally:
            self.blocked.discard(scope)
