"""Whether the server takes requests, and which ones are open: what cancelling, draining and stopping look at.

Imports trio; knows nothing of HTTP. All calls come from the one trio thread, none of them waits but `wait_idle`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from ..engine.core.errors import TrioletError
from .errors import ShuttingDown

CANCELLED = "cancelled"


class OpenRequest:
    """A request that is being answered. Its scope holds the generation, and nothing of the answer's last words."""

    def __init__(self, request_id: str, *, caller: str = "") -> None:
        self.request_id = request_id
        """What its client calls it; several may have the same name."""
        self.caller = caller
        """Whose it is: names are told apart by it."""
        self.scope = trio.CancelScope()
        self.error: TrioletError | None = None
        self.ended_by: str | None = None
        """The stop reason that its client is told, once it has been ended from outside."""
        self._on_end: list[Callable[[], None]] = []

    def interrupt(self, error: TrioletError) -> None:
        """Stop generating and tell the client `error`. Synchronous; the first call counts."""
        if self.error is None:
            self.error = error
            self.scope.cancel()

    def end(self, why: str) -> None:
        """Stop generating and give the client what there is. Synchronous; the first call counts."""
        if self.ended_by is None:
            self.ended_by = why
            for call in self._on_end:
                call()

    def on_end(self, call: Callable[[], None]) -> None:
        """`call` stops one of its parts; called at once when it has been ended already."""
        self._on_end.append(call)
        if self.ended_by is not None:
            call()


class Lifecycle:
    """Open requests, and the reason why no more are taken."""

    def __init__(self) -> None:
        self.open_requests: set[OpenRequest] = set()
        self.closed_because: TrioletError | None = None
        self._by_name: dict[tuple[str, str], set[OpenRequest]] = {}
        self._idle = trio.Event()

    @contextmanager
    def request(self, request_id: str, *, caller: str = "") -> Iterator[OpenRequest]:
        """Registers a request for as long as the block runs. Raises the reason when no more are taken."""
        if self.closed_because is not None:
            raise self.closed_because.with_traceback(None)  # One object, raised often: it must not collect frames.
        request = OpenRequest(request_id, caller=caller)
        self.open_requests.add(request)
        self._by_name.setdefault((caller, request_id), set()).add(request)
        try:
            yield request
        finally:
            self._forget(request)

    def cancel(self, request_id: str, *, caller: str, any_caller: bool = False) -> int:
        """End every open request of that name that `caller` sent, or anybody. Returns how many there were."""
        if any_caller:
            found = [request for request in self.open_requests if request.request_id == request_id]
        else:
            found = list(self._by_name.get((caller, request_id), ()))
        for request in found:
            request.end(CANCELLED)
        return len(found)

    def close(self, reason: TrioletError) -> None:
        """Take no more requests; the open ones go on. The first reason stays."""
        if self.closed_because is None:
            self.closed_because = reason

    def drain(self) -> None:
        """Take no more requests because the server has been told to stop."""
        self.close(ShuttingDown("The server is shutting down."))

    def interrupt_all(self, error: TrioletError) -> int:
        """Give every open request its terminal event. Returns how many there were."""
        requests = list(self.open_requests)
        for request in requests:
            request.interrupt(error)
        return len(requests)

    async def wait_idle(self) -> None:
        """Until no request is open."""
        while self.open_requests:
            self._idle = trio.Event()
            await self._idle.wait()

    def _forget(self, request: OpenRequest) -> None:
        self.open_requests.remove(request)
        name = (request.caller, request.request_id)
        self._by_name[name].remove(request)
        if not self._by_name[name]:
            del self._by_name[name]
        if not self.open_requests:
            self._idle.set()
