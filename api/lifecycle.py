"""Whether the server takes requests, and which ones are open: what draining and stopping look at.

Imports trio; knows nothing of HTTP. All calls come from the one trio thread, none of them waits but `wait_idle`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from ..engine.core.errors import TrioletError
from .errors import ShuttingDown


class OpenRequest:
    """A request that is being answered. Its scope holds the generation, and nothing of the answer's last words."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.scope = trio.CancelScope()
        self.error: TrioletError | None = None

    def interrupt(self, error: TrioletError) -> None:
        """Stop generating and tell the client `error`. Synchronous; the first call counts."""
        if self.error is None:
            self.error = error
            self.scope.cancel()


class Lifecycle:
    """Open requests, and the reason why no more are taken."""

    def __init__(self) -> None:
        self.open_requests: dict[str, OpenRequest] = {}
        self.closed_because: TrioletError | None = None
        self._idle = trio.Event()

    @contextmanager
    def request(self, request_id: str) -> Iterator[OpenRequest]:
        """Registers a request for as long as the block runs. Raises the reason when no more are taken."""
        if self.closed_because is not None:
            raise self.closed_because.with_traceback(None)  # One object, raised often: it must not collect frames.
        request = OpenRequest(request_id)
        self.open_requests[request_id] = request
        try:
            yield request
        finally:
            del self.open_requests[request_id]
            if not self.open_requests:
                self._idle.set()

    def close(self, reason: TrioletError) -> None:
        """Take no more requests; the open ones go on. The first reason stays."""
        if self.closed_because is None:
            self.closed_because = reason

    def drain(self) -> None:
        """Take no more requests because the server has been told to stop."""
        self.close(ShuttingDown("The server is shutting down."))

    def interrupt_all(self, error: TrioletError) -> int:
        """Give every open request its terminal event. Returns how many there were."""
        requests = list(self.open_requests.values())
        for request in requests:
            request.interrupt(error)
        return len(requests)

    async def wait_idle(self) -> None:
        """Until no request is open."""
        while self.open_requests:
            self._idle = trio.Event()
            await self._idle.wait()
