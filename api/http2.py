"""HTTP/2 on one connection: frames by the library h2, each stream an ASGI request of its own, as with HTTP/1.1.

It replaces hypercorn's, which buffers without bound for a client that doesn't read. Here the task that sends a body
makes one frame at a time, when the client's windows are open and the socket has taken what was there before; if that
takes longer than a write may, its stream is reset and its request freed, and the other streams go on. A stream that is
reset lets go of its task at once, also where the socket is full: what is left of a frame is the writer's.

    connection's nursery
    ├── writer                   what the socket did not take at once
    └── requests                 one task for each stream

Priorities are ignored, as RFC 9113 advises; nothing is pushed, and no CONNECT is taken.

A stream that is reset, a GOAWAY, and a connection that closes wholly or by half all count as the client's leaving.
"""

import math
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress

import attrs
import h2.config
import h2.connection
import h2.events
import h2.exceptions
import trio
from h2.errors import ErrorCodes
from h2.settings import SettingCodes, Settings
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Body, EndBody, Request, Response, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState
from hypercorn.utils import filter_pseudo_headers

from .heads import HEAD_BYTES_MAX
from .writing import WritePolicy

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

STREAMS_MAX = 100
"""Streams of a connection that may be open at a time."""

TASKS_MAX = 2 * STREAMS_MAX
"""Tasks of a connection. More than it has streams: they were opened and reset faster than requests can be freed."""

FRAME_BYTES_MAX = 16 * 1024
"""Of a client's frames: what the protocol begins with, and we announce nothing else."""

UNSENT_BYTES_MAX = 256 * 1024
"""Past this, of answers to a client's own frames, nothing more is read from it until it reads."""

LAST_NEWS_S = 1.0
"""How long telling an app that its stream has ended may wait for room in its queue."""

_TARGET = re.compile(rb"[\x21-\x7e]{1,65536}")
_HOP_BY_HOP = {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}


@attrs.define(eq=False)
class _Stream:
    """A stream whose request is being answered."""

    id: int
    http: HTTPStream
    moved: trio.Event = attrs.field(factory=trio.Event)
    """Set when a window has, or the writer is done, or the stream is gone."""
    has_request: bool = False
    """The whole request has come."""
    has_response: bool = False
    """The whole response has been sent."""
    gone: bool = False
    """Nothing more can be sent."""


class _FrameLengths:
    """Follows the frames in the bytes that come. The library looks at a frame's length once it has all of it, and would
    hold 16 MiB until then."""

    def __init__(self) -> None:
        self._num_to_skip = len(PREFACE)
        self._head = b""

    def are_allowed(self, data: bytes) -> bool:
        at = 0
        while at < len(data):
            if self._num_to_skip:
                skipped = min(self._num_to_skip, len(data) - at)
                self._num_to_skip -= skipped
                at += skipped
                continue
            part = data[at : at + 9 - len(self._head)]
            self._head += part
            at += len(part)
            if len(self._head) == 9:
                self._num_to_skip, self._head = int.from_bytes(self._head[:3], "big"), b""
                if self._num_to_skip > FRAME_BYTES_MAX:
                    return False
        return True


class Http2:
    """The protocol of one connection; `send` is the connection's, and `handle` is called by its reading task."""

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        task_group: TaskGroup,
        connection_state: ConnectionState,
        ssl: bool,
        client: tuple[str, int] | None,
        server: tuple[str, int] | None,
        send: Callable[[Event], Awaitable[None]],
        *,
        policy: WritePolicy,
        write_now: Callable[[bytes], bytes],
        num_tasks: Callable[[], int],
    ) -> None:
        self._app = app
        self._config = config
        self._context = context
        self._task_group = task_group
        self._state = connection_state
        self._ssl = ssl
        self._addresses = (client, server)
        self._send = send
        self._policy = policy
        self._write_now = write_now
        self._num_tasks = num_tasks
        self._unsent = b""
        self._is_writing = False
        self._writable = trio.Event()
        self._written = trio.Event()
        self._streams: dict[int, _Stream] = {}
        self._closed = False
        self._h2 = h2.connection.H2Connection(config=h2.config.H2Configuration(client_side=False, header_encoding=None))
        self._frames = _FrameLengths()
        self._h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
                SettingCodes.MAX_HEADER_LIST_SIZE: HEAD_BYTES_MAX,
            },
        )

    async def initiate(self) -> None:
        self._task_group.spawn(self._write)
        self._h2.initiate_connection()
        self._flush()

    # From the client

    async def handle(self, event: Event) -> None:
        if isinstance(event, Closed):
            await self._close()
        elif isinstance(event, RawData) and not self._closed:
            if not self._frames.are_allowed(event.data):
                await self._end(ErrorCodes.FRAME_SIZE_ERROR)
                return
            try:
                events = self._h2.receive_data(event.data)
            except h2.exceptions.ProtocolError:
                self._flush()  # says what was wrong
                await self._send(Closed())
                return
            for received in events:
                if self._closed:
                    return
                await self._receive(received)
            self._flush()
            while len(self._unsent) > UNSENT_BYTES_MAX and not self._closed:
                await self._written.wait()

    async def _receive(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived():
                await self._open(event)
            case h2.events.DataReceived(stream_id=int(stream_id)):
                if (stream := self._streams.get(stream_id)) is not None:
                    await stream.http.handle(Body(stream_id=stream_id, data=event.data or b""))
                with suppress(h2.exceptions.ProtocolError):
                    self._h2.acknowledge_received_data(event.flow_controlled_length or 0, stream_id)
            case h2.events.StreamEnded(stream_id=int(stream_id)):
                if (stream := self._streams.get(stream_id)) is not None:
                    stream.has_request = True
                    await stream.http.handle(EndBody(stream_id=stream_id))
            case h2.events.StreamReset(stream_id=int(stream_id)):
                if (stream := self._streams.get(stream_id)) is not None:
                    await self._drop(stream)
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                for stream in self._streams.values():
                    _wake(stream)
            case h2.events.ConnectionTerminated():
                await self._send(Closed())

    async def _open(self, event: h2.events.RequestReceived) -> None:
        assert event.stream_id is not None
        headers = [(bytes(name), bytes(value)) for name, value in event.headers or ()]
        pseudo = {name: value for name, value in headers if name.startswith(b":")}
        method, target = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
        if self._context.terminated.is_set():
            self._reset(event.stream_id, ErrorCodes.REFUSED_STREAM)
            return
        if method == b"CONNECT" or not method.isalpha() or not _TARGET.fullmatch(target):
            self._reset(event.stream_id, ErrorCodes.PROTOCOL_ERROR)
            return
        if self._num_tasks() > TASKS_MAX:
            await self._end(ErrorCodes.ENHANCE_YOUR_CALM)
            return
        client, server = self._addresses
        stream = _Stream(
            event.stream_id,
            HTTPStream(
                self._app,
                self._config,
                self._context,
                self._task_group,
                self._ssl,
                client,
                server,
                self._stream_send,
                event.stream_id,
            ),
        )
        self._streams[stream.id] = stream
        await self._send(Updated(idle=False))
        await stream.http.handle(
            Request(
                stream_id=stream.id,
                headers=filter_pseudo_headers(headers),
                http_version="2",
                method=method.decode("ascii").upper(),
                raw_path=target,
                state=self._state,
            )
        )

    # To the client

    async def _stream_send(self, event: StreamEvent) -> None:
        """Called by the task of a request. Raises nothing when the client is gone."""
        stream = self._streams.get(event.stream_id)
        if stream is None or stream.gone:
            if stream is not None and isinstance(event, StreamClosed):
                await self._finish(stream)
            return
        match event:
            case Response():
                headers = [(b":status", b"%d" % event.status_code), *event.headers]
                headers += self._config.response_headers("h2")
                with suppress(h2.exceptions.ProtocolError):
                    self._h2.send_headers(stream.id, [entry for entry in headers if entry[0] not in _HOP_BY_HOP])
                self._flush()
            case Body():
                await self._send_body(stream, event.data)
            case EndBody():
                with suppress(h2.exceptions.ProtocolError):
                    self._h2.end_stream(stream.id)
                    stream.has_response = True
                self._flush()
            case StreamClosed():
                await self._finish(stream)

    async def _send_body(self, stream: _Stream, data: bytes) -> None:
        """Frame after frame, with one deadline for all the waiting."""
        deadline_s = math.inf
        while data and not stream.gone:
            try:
                window = self._h2.local_flow_control_window(stream.id)
                size = 0 if self._is_writing else min(window, self._h2.max_outbound_frame_size)
                if size > 0:
                    self._h2.send_data(stream.id, data[:size])
            except h2.exceptions.ProtocolError:
                return  # The client has left; its news is on the way.
            if size > 0:
                data = data[size:]
                self._flush()
                continue
            if deadline_s == math.inf:
                deadline_s = trio.current_time() + self._policy.timeout_s
            if not await self._wait(stream, deadline_s):
                self._reset(stream.id, ErrorCodes.CANCEL)
                await self._drop(stream)

    async def _wait(self, stream: _Stream, deadline_s: float) -> bool:
        """Until something has moved for a stream. False: it is too late."""
        with self._policy.waiting(deadline_s) as scope:
            await stream.moved.wait()
        return not scope.cancelled_caught

    async def _finish(self, stream: _Stream) -> None:
        """The request's task has nothing more to say. Shielded: the news of the end may cancel this very task."""
        with trio.CancelScope(shield=True):
            if not stream.gone:
                if not stream.has_response:
                    self._reset(stream.id, ErrorCodes.INTERNAL_ERROR)
                elif not stream.has_request:
                    self._reset(stream.id, ErrorCodes.NO_ERROR)  # the rest of the request is not wanted
            deadline_s = trio.current_time() + self._policy.timeout_s
            while self._is_writing and not stream.gone and await self._wait(stream, deadline_s):
                pass  # An idle connection may be closed: not before the client has the end of this.
            await self._drop(stream)

    async def _drop(self, stream: _Stream) -> None:
        """The stream is over: whoever sends stops, and the request's task is told."""
        stream.gone = True
        _wake(stream)
        if self._streams.pop(stream.id, None) is None:
            return
        with trio.move_on_after(LAST_NEWS_S, shield=True):
            await stream.http.handle(StreamClosed(stream_id=stream.id))
        if not self._streams and not self._closed:
            await self._send(Updated(idle=True))

    async def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with suppress(h2.exceptions.ProtocolError):
            self._h2.close_connection()
        self._flush()
        self._writable.set()
        self._written.set()
        for stream in list(self._streams.values()):
            await self._drop(stream)

    async def _end(self, code: ErrorCodes) -> None:
        with suppress(h2.exceptions.ProtocolError):
            self._h2.close_connection(code)
        self._flush()
        await self._send(Closed())

    def _reset(self, stream_id: int, code: ErrorCodes) -> None:
        with suppress(h2.exceptions.ProtocolError):
            self._h2.reset_stream(stream_id, code)
        self._flush()

    def _flush(self) -> None:
        """Send what there is to send, or leave it to the writer, who is at it already."""
        data = self._h2.data_to_send()
        if not self._is_writing and data:
            data = self._write_now(data)
        if data:
            self._unsent += data
            self._is_writing = True
            self._writable.set()

    async def _write(self) -> None:
        """A task of the connection, until it closes."""
        while not self._closed:
            await self._writable.wait()
            self._writable = trio.Event()
            while self._unsent and not self._closed:
                data, self._unsent = self._unsent, b""
                await self._send(RawData(data=data))
                self._written.set()
                self._written = trio.Event()
            self._is_writing = False
            for stream in self._streams.values():
                _wake(stream)


def _wake(stream: _Stream) -> None:
    stream.moved.set()
    stream.moved = trio.Event()
