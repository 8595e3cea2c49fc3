"""Clients of one request each, over HTTP/1.1 and HTTP/2, that can leave in every way there is."""

import abc
import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

import h2.config
import h2.connection
import h2.events
import trio
from h2.settings import SettingCodes, Settings

SMALL_BYTES = 4096
"""Of a stalled client's receive buffer."""


class Client(abc.ABC):
    """One connection, one request after the other. What the server sends is read on demand only."""

    WAYS: tuple[str, ...]

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.ended = False
        self.more_headers: dict[str, str] = {}
        """Sent with every request."""

    async def ask(self, path: str, body: Mapping[str, Any] | None = None, **headers: str) -> None:
        """Send a request: a POST if it has a body."""
        self.status, self.headers, self.body, self.ended = 0, {}, b"", False
        content = b"" if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in {**self.more_headers, **headers}.items()}
        await self._ask("GET" if body is None else "POST", path, content, named)

    async def ask_in_part(self, path: str, body: Mapping[str, Any]) -> None:
        """Send a request but for the last bytes of its body."""
        self.status, self.headers, self.body, self.ended = 0, {}, b"", False
        await self._ask("POST", path, json.dumps(body).encode(), {}, num_kept=5)

    async def read_until(self, mark: bytes) -> bytes:
        """The body so far, which has `mark` in it."""
        while mark not in self.body:
            assert not self.ended, f"the response ended before {mark!r}: {self.body!r}"
            await self._read()
        return self.body

    async def read(self) -> bytes:
        """The whole body."""
        while not self.ended:
            await self._read()
        return self.body

    async def read_head(self) -> int:
        while not self.status:
            await self._read()
        return self.status

    async def answer(self, path: str, body: Mapping[str, Any] | None = None, **headers: str) -> Any:
        """Ask, and decode the whole answer."""
        await self.ask(path, body, **headers)
        return json.loads(await self.read())

    async def leave(self, way: str) -> None:
        """FIN, RST, half-close; with HTTP/2 also RST_STREAM and GOAWAY. What is left open is for `close`."""
        if way == "half":
            await self.stream.send_eof()
        elif way == "reset":
            self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await self.stream.aclose()
        else:
            assert way == "close"
            await self.stream.aclose()

    async def close(self) -> None:
        await self.stream.aclose()

    @abc.abstractmethod
    async def _ask(
        self, method: str, path: str, content: bytes, headers: Mapping[str, str], *, num_kept: int = 0
    ) -> None: ...

    @abc.abstractmethod
    async def _read(self) -> None:
        """Take in what the server sends next."""

    async def _receive(self) -> bytes:
        data = await self.stream.receive_some(65536)
        assert data, f"the connection ended: {self.status} {self.body!r}"
        return bytes(data)


class Http1Client(Client):
    """Written by hand: h11 would hide what it is that is sent."""

    WAYS = ("close", "reset", "half")

    def __init__(self, stream: trio.SocketStream) -> None:
        super().__init__(stream)
        self._pending = b""

    async def _ask(
        self, method: str, path: str, content: bytes, headers: Mapping[str, str], *, num_kept: int = 0
    ) -> None:
        lines = [f"{method} {path} HTTP/1.1", "host: test"]
        if content:
            lines.append(f"content-length: {len(content)}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        await self.stream.send_all("\r\n".join(lines).encode() + b"\r\n\r\n" + content[: len(content) - num_kept])

    async def _read(self) -> None:
        self._pending += await self._receive()
        if not self.status:
            head, found, rest = self._pending.partition(b"\r\n\r\n")
            if not found:
                return
            self._pending = rest
            first, *lines = head.decode("latin-1").split("\r\n")
            self.status = int(first.split(" ")[1])
            self.headers = dict(line.lower().split(": ", 1) for line in lines)
        if "content-length" in self.headers:
            length = int(self.headers["content-length"])
            self.body = self._pending[:length]
            if len(self.body) == length:
                self.ended, self._pending = True, self._pending[length:]
            return
        self._read_chunks()

    def _read_chunks(self) -> None:
        while b"\r\n" in self._pending:
            size, _, rest = self._pending.partition(b"\r\n")
            length = int(size, 16)
            if len(rest) < length + 2:
                return
            self.body += rest[:length]
            self._pending = rest[length + 2 :]
            if length == 0:
                self.ended = True
                return


class Http2Client(Client):
    """Prior knowledge, without TLS. `window` is how much the server may send before it is read."""

    WAYS = ("close", "reset", "half", "rst_stream", "goaway")

    def __init__(self, stream: trio.SocketStream, *, window: int = 65535) -> None:
        super().__init__(stream)
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._h2.local_settings = Settings(client=True, initial_values={SettingCodes.INITIAL_WINDOW_SIZE: window})
        self._h2.initiate_connection()
        self.stream_id = 0
        self.unread: set[int] = set()
        """Streams whose windows are not opened again."""
        self.reset_streams: set[int] = set()
        """Those that the server has reset."""
        self.bodies: dict[int, bytes] = {}
        """Of other streams than the last."""
        self.goaway_code: int | None = None
        self._window_moved = trio.Event()

    async def _flush(self) -> None:
        if data := self._h2.data_to_send():
            await self.stream.send_all(data)

    async def _ask(
        self, method: str, path: str, content: bytes, headers: Mapping[str, str], *, num_kept: int = 0
    ) -> None:
        self.stream_id = self._h2.get_next_available_stream_id()
        head = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "test"), *headers.items()]
        self._h2.send_headers(self.stream_id, head, end_stream=not content)
        size = self._h2.max_outbound_frame_size
        for start in range(0, len(content), size):
            part = content[start : min(start + size, len(content) - num_kept)]
            self._h2.send_data(self.stream_id, part, end_stream=not num_kept and start + size >= len(content))
        await self._flush()

    async def ask_long(self, path: str, body: Mapping[str, Any]) -> None:
        """Send a request whose body may be longer than the server's window; somebody must read meanwhile."""
        content = json.dumps(body).encode()
        await self._ask("POST", path, b" ", {}, num_kept=1)
        while content:
            size = min(self._h2.local_flow_control_window(self.stream_id), self._h2.max_outbound_frame_size)
            if size == 0:
                await self._window_moved.wait()
                continue
            self._h2.send_data(self.stream_id, content[:size], end_stream=size >= len(content))
            content = content[size:]
            await self._flush()

    async def _read(self) -> None:
        for event in self._h2.receive_data(await self._receive()):
            match event:
                case h2.events.ResponseReceived(stream_id=self.stream_id):
                    self.headers = {str(name): str(value) for name, value in event.headers}
                    self.status = int(self.headers.pop(":status"))
                case h2.events.DataReceived(stream_id=self.stream_id):
                    self.body += event.data
                    self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                case h2.events.DataReceived() if event.stream_id not in self.unread:
                    self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
                    self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                case h2.events.StreamEnded(stream_id=self.stream_id):
                    self.ended = True
                case h2.events.StreamReset():
                    self.reset_streams.add(event.stream_id)
                    self.ended = self.ended or event.stream_id == self.stream_id
                case h2.events.ConnectionTerminated():
                    self.ended, self.goaway_code = True, event.error_code
                case h2.events.WindowUpdated():
                    self._window_moved.set()
                    self._window_moved = trio.Event()
        await self._flush()

    async def leave(self, way: str) -> None:
        if way == "rst_stream":
            self._h2.reset_stream(self.stream_id, 8)
            await self._flush()
        elif way == "goaway":
            self._h2.close_connection()
            await self._flush()
        else:
            await super().leave(way)


PROTOCOLS: dict[str, type[Client]] = {"http/1.1": Http1Client, "http/2": Http2Client}


async def connect(protocol: str, port: int, *, stalled: bool = False, window: int = 65535) -> Client:
    """A client. A stalled one has small buffers, so that the server soon has to wait for it; with HTTP/2 for the socket
    unless `window` is smaller."""
    raw = trio.socket.socket()
    if stalled:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BYTES)
    await raw.connect(("127.0.0.1", port))
    stream = trio.SocketStream(raw)
    if protocol == "http/2":
        return Http2Client(stream, window=window)
    return Http1Client(stream)
