"""One HTTP/1.1 request on a connection of its own, and its response as bytes: h11 over trio's streams.

Imports trio and h11. The scope of an exchange owns the connection: leaving it, for whatever reason, closes it at once,
and that is what tells the server that nobody waits any more. No redirect is followed, nothing is sent twice.
"""

import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import attrs
import h11
import trio

from ...engine.core.errors import ConfigurationError, RequestError

CONNECT_TIMEOUT_S = 30.0
READ_BYTES = 64 * 1024


class Unreachable(RequestError):
    """No connection could be had: nothing was asked."""


class Broken(RequestError):
    """The connection failed before the answer was whole."""


@attrs.frozen(kw_only=True)
class Place:
    """Where a server is."""

    name: str
    """What errors call it."""
    host: str = "localhost"
    port: int = 80
    tls: bool = False
    path: str = ""
    """In front of every route."""
    uds: str | None = None
    """A socket file in the place of host and port."""
    api_key: str | None = attrs.field(default=None, repr=False)

    @classmethod
    def at(cls, url: str, *, api_key: str | None = None) -> "Place":
        """Of a base URL, with or without its /v1. Raises ConfigurationError."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigurationError(f"--url {url} is malformed: {error}.") from None
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            raise ConfigurationError(f"--url must look like http://127.0.0.1:8000/v1, not {url!r}.")
        path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        if not (path.isascii() and path.isprintable() and " " not in path and host.isprintable()):
            raise ConfigurationError(f"--url {url!r} has characters that a URL does not have.")
        tls = parts.scheme == "https"
        name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"
        return cls(name=name, host=host, port=port or (443 if tls else 80), tls=tls, path=path, api_key=api_key)

    def head(self, method: str, route: str, num_body_bytes: int) -> h11.Request:
        host = self.host if ":" not in self.host else f"[{self.host}]"
        headers = [
            ("host", f"{host}:{self.port}"),
            ("accept", "*/*"),
            ("connection", "close"),
            ("content-type", "application/json"),
            ("content-length", str(num_body_bytes)),
        ]
        if self.api_key:
            headers.append(("authorization", f"Bearer {self.api_key}"))
        return h11.Request(method=method, target=self.path + route, headers=headers)

    async def connect(self) -> trio.abc.Stream:
        """Raises Unreachable."""
        reason = f"no connection within {CONNECT_TIMEOUT_S:g} s"
        try:
            with trio.move_on_after(CONNECT_TIMEOUT_S):
                return await self._connect()
        except (OSError, trio.BrokenResourceError) as error:
            reason = reason_of(error)
        raise Unreachable(f"{self.name} cannot be reached: {reason}.")

    async def _connect(self) -> trio.abc.Stream:
        if self.uds is not None:
            return await trio.open_unix_socket(self.uds)
        if not self.tls:
            return await trio.open_tcp_stream(self.host, self.port)
        context = ssl.create_default_context()
        stream = await trio.open_ssl_over_tcp_stream(self.host, self.port, https_compatible=True, ssl_context=context)
        try:
            await stream.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream


class Exchange:
    """A request that was sent; made by `exchange`."""

    def __init__(self, place: Place, stream: trio.abc.Stream) -> None:
        self._place = place
        self._stream = stream
        self._connection = h11.Connection(h11.CLIENT)
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        """By their names in small letters."""

    async def read(self) -> bytes:
        """What has come of the body; nothing at its end. Raises Broken."""
        event = await self._next()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def read_all(self, limit_bytes: int) -> bytes:
        """The rest of the body. Raises Broken, also for one beyond the limit."""
        parts: list[bytes] = []
        num_bytes = 0
        while data := await self.read():
            parts.append(data)
            num_bytes += len(data)
            if num_bytes > limit_bytes:
                raise Broken(f"{self._place.name} sent an answer of more than {limit_bytes} bytes.")
        return b"".join(parts)

    async def _send(self, head: h11.Request, body: bytes) -> None:
        data = self._connection.send(head) or b""
        data += (self._connection.send(h11.Data(data=body)) or b"") if body else b""
        data += self._connection.send(h11.EndOfMessage()) or b""
        with suppress(trio.BrokenResourceError):  # It may have answered all the same: why it did not want the rest.
            await self._stream.send_all(data)
        while not isinstance(event := await self._next(), h11.Response):
            pass  # 1xx
        self.status = event.status_code
        self.headers = dict(event.headers)

    async def _next(self) -> h11.Event:
        try:
            while (event := self._connection.next_event()) is h11.NEED_DATA:
                self._connection.receive_data(bytes(await self._stream.receive_some(READ_BYTES)))
        except (h11.RemoteProtocolError, OSError, trio.BrokenResourceError) as error:
            raise Broken(f"The connection to {self._place.name} broke off: {reason_of(error)}.") from None
        if isinstance(event, h11.ConnectionClosed):
            raise Broken(f"{self._place.name} closed the connection without an answer.")
        assert not isinstance(event, type)
        return event


@asynccontextmanager
async def exchange(place: Place, method: str, route: str, body: bytes = b"") -> AsyncIterator[Exchange]:
    """Send a request and wait for the head of its response. Raises Unreachable, Broken."""
    stream = await place.connect()
    try:
        sent = Exchange(place, stream)
        await sent._send(place.head(method, route, len(body)), body)
        yield sent
    finally:
        with trio.CancelScope(shield=True):  # closing by force waits for nothing
            await trio.aclose_forcefully(stream)


def reason_of(error: BaseException) -> str:
    """What the system said, where it said anything: it stands at the bottom of a chain of the libraries' errors."""
    reason: BaseException | None = error
    while reason is not None:
        if isinstance(reason, ssl.SSLError):
            return getattr(reason, "verify_message", None) or reason.reason or str(reason)
        if isinstance(reason, OSError) and reason.strerror:
            return os.strerror(reason.errno) if reason.errno is not None and reason.errno > 0 else reason.strerror
        inner = reason.exceptions[0] if isinstance(reason, BaseExceptionGroup) else None
        reason = inner or reason.__cause__ or reason.__context__
    return str(error).strip().rstrip(".") or type(error).__name__
