"""Sending an answer: one HTTP response, plain or a stream of server-sent events, over an ASGI `send`.

Concurrent calls of `event` are safe: a chunk is framed and handed to the connection without a pause, and the connection
writes in that order. `send` raises nothing when the client is gone; whoever owns the request learns it from `receive`.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio

Send = Callable[[dict[str, Any]], Awaitable[None]]

ID_HEADERS = (b"x-request-id",)
PING = b": ping\n\n"

_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class Reply:
    """The answer to one request."""

    def __init__(self, send: Send, *, request_id: str | None = None, id_headers: Sequence[bytes] = ID_HEADERS) -> None:
        self._send = send
        self._id_headers = id_headers
        self.request_id = request_id
        """The `X-Request-Id` that the response will have."""
        self.streaming = False
        """The response is an event stream, and has begun."""
        self._last_sent_s = 0.0

    async def json(
        self, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = (), *, more: bool = False
    ) -> None:
        """The whole answer. With `more` the response stays open, though the client has it all: `end` must follow."""
        await self._whole(status, body, ((b"content-type", b"application/json"), *headers), more=more)

    async def html(
        self, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = (), *, more: bool = False
    ) -> None:
        """The same for what a browser shows."""
        await self._whole(status, body, ((b"content-type", b"text/html; charset=utf-8"), *headers), more=more)

    async def _whole(self, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]], *, more: bool) -> None:
        await self._start(status, (*headers, (b"content-length", str(len(body)).encode())))
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def start_stream(self) -> None:
        """Status 200 and the headers of an event stream. From here on an error can only be an event."""
        self.streaming = True
        self._last_sent_s = trio.current_time()
        await self._start(200, _STREAM_HEADERS)

    async def event(self, data: bytes) -> None:
        """Send whole events, framed already."""
        self._last_sent_s = trio.current_time()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last bytes and close the response."""
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def keep_alive(self, interval_s: float, ping: bytes = PING) -> None:
        """Runs until cancelled: `ping`, a comment, whenever nothing was sent for `interval_s`.

        It keeps proxies from cutting a quiet stream, and its write fails where a client's leaving went unseen.
        """
        while True:
            due_s = self._last_sent_s + interval_s
            await trio.sleep_until(due_s)
            if self._last_sent_s + interval_s <= trio.current_time():
                await self.event(ping)

    async def _start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        described = list(headers)
        if self.request_id is not None:
            described += [(name, self.request_id.encode()) for name in self._id_headers]
        await self._send({"type": "http.response.start", "status": status, "headers": described})
