"""One connection: hypercorn's TCP server, with four of its habits changed. HTTP/1.1 only.

1. A write is tried without waiting first; only a full socket waits, and no longer than a deadline. An event then costs
   about a third, and a client that stops reading cannot hold a request, or the shutdown, for ever.
2. Reading goes on while a request is answered: what the client sends ahead waits in a short queue, so its leaving is
   seen at once even behind stray or pipelined bytes. A failed write ends the reading too.
3. No websockets and no HTTP/2: an upgrade is not taken, and the request is answered as plain HTTP/1.1. (hypercorn dies
   of a malformed websocket upgrade, its issue 225, and does not bound what it buffers for an HTTP/2 stream.)
4. An exception ends its connection, with one line in the log, and never the server.

This leans on hypercorn 0.18's insides, which pyproject.toml therefore pins to the minor version.
"""

import logging
import math
import os

import attrs
import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.events import Request, StreamClosed
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState, LifespanState
from hypercorn.utils import parse_socket_addr

log = logging.getLogger(__name__)

READ_AHEAD_CHUNKS = 2
"""Reads (64 KiB each) that may wait for the request before them. A client that sends more ahead is not read further,
and its leaving shows when a write fails."""

LAST_NEWS_S = 1.0
"""How long telling an app that its stream has ended may wait for room in its queue."""


@attrs.define(kw_only=True, eq=False)
class WritePolicy:
    """How long writes may wait, for all connections of a server."""

    timeout_s: float
    deadline_s: float = math.inf
    """The moment after which no write waits any more: set when the server stops."""
    blocked: set[trio.CancelScope] = attrs.field(factory=set)

    def end_at(self, deadline_s: float) -> None:
        """No write, begun or to come, waits past this moment."""
        self.deadline_s = min(self.deadline_s, deadline_s)
        for scope in self.blocked:
            scope.deadline = min(scope.deadline, self.deadline_s)


class Http1(H11Protocol):
    """HTTP/1.1 without upgrades."""

    async def _check_protocol(self, event: h11.Request) -> None:
        """Not even a look: neither h2c nor HTTP/2's preface leads anywhere. (The gate answers the latter with 505.)"""

    async def _create_stream(self, request: h11.Request) -> None:
        self.stream = HTTPStream(
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
        await self.stream.handle(
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
    """Serves one accepted socket until it closes. `run` never raises but when cancelled."""

    stream: trio.SocketStream  # type: ignore[assignment]

    def __init__(
        self, policy: WritePolicy, app: AppWrapper, config: Config, context: WorkerContext, stream: trio.SocketStream
    ) -> None:
        super().__init__(app, config, context, LifespanState({}), stream)  # type: ignore[arg-type]
        self._policy = policy
        self._reading = trio.CancelScope()

    async def run(self) -> None:
        try:
            await self._serve()
        except* OSError:
            pass  # The client went while we were looking.
        except* Exception as group:
            log.error("a connection ended because of an error in the server", exc_info=group)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + self._policy.timeout_s):
                await self._close()

    async def _serve(self) -> None:
        socket = self.stream.socket
        client = parse_socket_addr(socket.family, socket.getpeername())
        server = parse_socket_addr(socket.family, socket.getsockname())
        async with TaskGroup() as task_group:
            self._task_group = task_group
            self.protocol = Http1(  # type: ignore[assignment]
                self.app,
                self.config,
                self.context,
                task_group,
                ConnectionState(self.state.copy()),
                False,
                client,
                server,
                self.protocol_send,
            )
            await self.idle_task.restart(task_group, self._idle_timeout)
            await self._read_data()
            # Without this an idle connection would keep its socket until its keep-alive ends.
            await self.idle_task.stop()

    async def _read_data(self) -> None:
        ahead, pending = trio.open_memory_channel[bytes](READ_AHEAD_CHUNKS)
        with ahead, pending, self._reading:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._feed, pending)
                await self._read_into(ahead)
                nursery.cancel_scope.cancel()
        await self.protocol.handle(Closed())

    async def _read_into(self, ahead: "trio.MemorySendChannel[bytes]") -> None:
        """Until the client's side is closed, wholly or by half: both count as leaving."""
        try:
            while data := await self.stream.receive_some(MAX_RECV):
                await ahead.send(bytes(data))
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            pass

    async def _feed(self, pending: "trio.MemoryReceiveChannel[bytes]") -> None:
        async for data in pending:
            await self.protocol.handle(RawData(data))

    async def protocol_send(self, event: Event) -> None:
        if type(event) is not RawData:
            # Closing, and being idle, must not be lost with the task of an app that is cancelled.
            with trio.CancelScope(shield=True):
                await super().protocol_send(event)
            return
        data = event.data
        if not self.send_lock.locked():
            try:
                num_sent = os.write(self.stream.socket.fileno(), data)
            except BlockingIOError:
                num_sent = 0
            except OSError:
                await self._lose()
                return
            if num_sent == len(data):
                return  # No checkpoint: whoever sends in a loop has one of its own.
            data = data[num_sent:]
        await self._write_slowly(data)

    async def _write_slowly(self, data: bytes) -> None:
        """Wait for room in the socket. Shielded, the lock too: a cancellation must not leave half an event behind."""
        policy = self._policy
        deadline_s = min(trio.current_time() + policy.timeout_s, policy.deadline_s)
        scope = trio.CancelScope(shield=True, deadline=deadline_s)
        policy.blocked.add(scope)
        try:
            with scope:
                async with self.send_lock:
                    await self.stream.send_all(data)
                return
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            policy.blocked.discard(scope)
        if scope.cancelled_caught:
            log.debug("dropped a client that had stopped reading")
            await trio.aclose_forcefully(self.stream)
        await self._lose()

    async def _lose(self) -> None:
        """The client is gone: end the reading, which tells the request. A checkpoint, so that a sender cannot spin."""
        self._reading.cancel()
        await trio.lowlevel.checkpoint()
