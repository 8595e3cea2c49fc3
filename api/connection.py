"""One connection: hypercorn's TCP server, with four of its habits changed.

1. A write is tried without waiting first; only a full socket waits, and no longer than a deadline. An event then costs
   about a third, and a client that stops reading cannot hold a request, or the shutdown, for ever.
2. Reading goes on while a request is answered: what the client sends ahead waits in a short queue, so its leaving is
   seen at once even behind stray or pipelined bytes. A failed write ends the reading too, and the end of the reading
   ends every write that waits.
3. No websockets: an upgrade is not taken, and the request is answered as plain HTTP/1.1. (hypercorn dies of a malformed
   websocket upgrade, its issue 225.) HTTP/2 is our own (`http2.py`), told by its preface, over TLS and without.
4. An exception ends its connection, with one line in the log, and never the server.

This leans on hypercorn 0.18's insides, which pyproject.toml therefore pins to the minor version.
"""

import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Request, StreamClosed
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ASGISendEvent, ConnectionState, LifespanState
from hypercorn.utils import parse_socket_addr, suppress_body

from .errors import HeadersTooLarge, MalformedHttp, as_http
from .heads import HEAD_TOO_LARGE
from .http2 import LAST_NEWS_S, PREFACE, Http2
from .writing import WritePolicy

log = logging.getLogger(__name__)

READ_AHEAD_CHUNKS = 2
"""Reads (64 KiB each) that may wait for the request before them. A client that sends more ahead is not read further,
and its leaving shows when a write fails."""


FRAMING = (b"content-length", b"transfer-encoding")


class Http1Stream(HTTPStream):
    """A request and its answer, whose pieces are framed here once it is certain that they are chunks: h11 would look at
    its states for each of them, which costs as much as the rest of the way."""

    _is_chunked = False
    write: Callable[[RawData], Awaitable[None]]
    """The connection's, past h11."""

    async def app_send(self, message: ASGISendEvent | None) -> None:
        if message is not None and message["type"] == "http.response.body" and message.get("more_body", False):
            body = message.get("body", b"")
            if self._is_chunked and body and self.state is ASGIHTTPState.RESPONSE:
                await self.write(RawData(b"%x\r\n%b\r\n" % (len(body), body)))
                return
        await super().app_send(message)
        if message is not None and message["type"] == "http.response.start":
            # As h11 decides it.
            self._is_chunked = (
                self.scope["http_version"] == "1.1"
                and not suppress_body(self.scope["method"], message["status"])
                and not any(name.lower() in FRAMING for name, _ in message["headers"])
            )


class Parser(h11.Connection):
    """h11's, but what a client sends after its last request (`connection: close`, HTTP/1.0) is left unread, as what it
    pipelines is: for h11 it is an error, and the request before it would lose its answer for a stray line end. Line
    ends before a request are passed over (RFC 9112, 2.2: some clients send one after a body)."""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if self.their_state is h11.IDLE:
            ahead = self.trailing_data[0]
            if len(ahead) != len(ahead.lstrip(b"\r\n")):
                self._receive_buffer.maybe_extract_at_most(len(ahead) - len(ahead.lstrip(b"\r\n")))
        answering = self.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY)
        if answering and self.their_state is h11.MUST_CLOSE and self.trailing_data[0]:
            return h11.PAUSED
        return super().next_event()


class Http1(H11Protocol):
    """HTTP/1.1 without upgrades."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.connection = Parser(h11.SERVER, max_incomplete_event_size=self.config.h11_max_incomplete_size)

    async def _check_protocol(self, event: h11.Request) -> None:
        """Not even a look: h2c leads nowhere, nor does HTTP/2's preface in here. (The gate answers that with 505.)"""

    async def _send_error_response(self, status_code: int) -> None:
        """What no app will hear of is answered like everything else, with an error object."""
        error = HeadersTooLarge(HEAD_TOO_LARGE) if status_code == 431 else MalformedHttp("This is no HTTP request.")
        http = as_http(error)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(http.body)),
            (b"connection", b"close"),
        ]
        await self._send_h11_event(h11.Response(status_code=status_code, headers=headers))
        await self._send_h11_event(h11.Data(data=http.body))
        await self._send_h11_event(h11.EndOfMessage())

    async def _create_stream(self, request: h11.Request) -> None:
        self.stream = stream = Http1Stream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        stream.write = self.send
        await stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode(),
                method=request.method.decode("ascii").upper(),
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1
        await self.context.mark_request()

    async def _maybe_recycle(self) -> None:
        """After the response. Shielded: in here the app hears of the stream's end, and may cancel this very task."""
        with trio.CancelScope(shield=True):
            await super()._maybe_recycle()

    async def _close_stream(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            # Where the queue is full of a body that the app did not want, it needs no news of the end either.
            with trio.move_on_after(LAST_NEWS_S, shield=True):
                await stream.handle(StreamClosed(stream_id=STREAM_ID))


class Connection(TCPServer):
    """Serves one accepted socket until it closes, over TLS if it comes as an SSLStream. `run` never raises but when
    cancelled."""

    stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]  # type: ignore[assignment]

    def __init__(
        self,
        policy: WritePolicy,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        stream: trio.SocketStream | trio.SSLStream[trio.SocketStream],
    ) -> None:
        super().__init__(app, config, context, LifespanState({}), stream)  # type: ignore[arg-type]
        self._policy = policy
        self._is_tls = isinstance(stream, trio.SSLStream)
        self._socket = stream.transport_stream.socket if isinstance(stream, trio.SSLStream) else stream.socket
        self._reading = trio.CancelScope()
        self._writes: set[trio.CancelScope] = set()
        self._has_left = False

    async def run(self) -> None:
        try:
            if await self._shake_hands():
                await self._serve()
        except* OSError:
            pass  # The client went while we were looking.
        except* Exception as group:
            log.error("a connection ended because of an error in the server", exc_info=group)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + self._policy.timeout_s):
                await self._close()

    async def _shake_hands(self) -> bool:
        """TLS first, where there is TLS: False when that fails, or takes longer than the head of a request may."""
        if not isinstance(self.stream, trio.SSLStream):
            return True
        with trio.move_on_after(self.config.keep_alive_timeout):
            try:
                await self.stream.do_handshake()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return False
            return True
        return False

    async def _serve(self) -> None:
        async with TaskGroup() as task_group:
            self._task_group = task_group
            self._speak(Http1)
            await self.idle_task.restart(task_group, self._idle_timeout)
            await self._read_data()
            # Without this an idle connection would keep its socket until its keep-alive ends.
            await self.idle_task.stop()

    def _speak(self, protocol: type[Http1] | partial[Http2]) -> None:
        socket = self._socket
        self.protocol = protocol(  # type: ignore[assignment]
            self.app,
            self.config,
            self.context,
            self._task_group,
            ConnectionState(self.state.copy()),
            self._is_tls,
            parse_socket_addr(socket.family, socket.getpeername()),
            parse_socket_addr(socket.family, socket.getsockname()),
            self.protocol_send,
        )

    async def _speak_http2(self) -> None:
        self._speak(partial(Http2, policy=self._policy, write_now=self.write_now, num_tasks=self._num_tasks))
        await self.protocol.initiate()

    def _num_tasks(self) -> int:
        nursery = self._task_group._nursery
        return len(nursery.child_tasks) if nursery is not None else 0

    async def _read_data(self) -> None:
        ahead, pending = trio.open_memory_channel[bytes](READ_AHEAD_CHUNKS)
        with ahead, pending, self._reading:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._feed, pending)
                await self._read_into(ahead)
                nursery.cancel_scope.cancel()
        self._has_left = True
        for scope in self._writes:
            scope.cancel()
        await self.protocol.handle(Closed())

    async def _read_into(self, ahead: "trio.MemorySendChannel[bytes]") -> None:
        """Until the client's side is closed, wholly or by half: both count as leaving."""
        try:
            while data := await self.stream.receive_some(MAX_RECV):
                await ahead.send(bytes(data))
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            pass

    async def _feed(self, pending: "trio.MemoryReceiveChannel[bytes]") -> None:
        first: bytes | None = b""  # until it is known which protocol this is; no HTTP/1.1 begins like the preface
        async for data in pending:
            if first is not None:
                data = first + data
                if len(data) < len(PREFACE) and PREFACE.startswith(data):
                    first = data
                    continue
                first = None
                if data.startswith(PREFACE) and "h2" in self.config.alpn_protocols:
                    await self._speak_http2()
            await self.protocol.handle(RawData(data))

    async def protocol_send(self, event: Event) -> None:
        if type(event) is not RawData:
            if self._has_left and isinstance(event, Updated):
                return  # It will not be idle, it will be gone.
            # Closing, and being idle, must not be lost with the task of an app that is cancelled.
            with trio.CancelScope(shield=True):
                await super().protocol_send(event)
            return
        rest = self.write_now(event.data)
        if rest:
            await self._write_slowly(rest)
        elif self._reading.cancel_called:
            await trio.lowlevel.checkpoint()  # A sender in a loop must not spin until it has heard of it.

    def write_now(self, data: bytes) -> bytes:
        """Write what the socket takes at once, nothing of it with TLS, and give back the rest. What is written to a
        client that is gone is lost, and ends the reading, which tells the requests.

        No checkpoint: whoever sends in a loop has one of its own.
        """
        if self._has_left:
            return b""
        if self._is_tls or self.send_lock.locked():
            return data
        try:
            return data[os.write(self._socket.fileno(), data) :]
        except BlockingIOError:
            return data
        except OSError:
            self._reading.cancel()
            return b""

    async def _write_slowly(self, data: bytes) -> None:
        """Wait for room in the socket. Shielded, the lock too: a cancellation must not leave half an event behind."""
        try:
            with self._policy.waiting(trio.current_time() + self._policy.timeout_s) as scope:
                self._writes.add(scope)
                async with self.send_lock:
                    await self.stream.send_all(data)
                return
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self._writes.discard(scope)
        if scope.cancelled_caught:
            log.debug("dropped a client that had stopped reading")
            await trio.aclose_forcefully(self.stream)
        self._reading.cancel()
        await trio.lowlevel.checkpoint()
