"""A client that costs little: one request on one connection, its answer kept as bytes with the times of their arrival.

Imports trio. It shares its machine with the server that it measures, so nothing is decoded while the clock runs
(`response.py` does that afterwards), and a plain connection is a bare socket. Every request has a connection of its
own, because some servers close theirs after an answer.
"""

import errno
import os
import selectors
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import attrs
import trio

from ...engine.core.errors import ConfigurationError
from .response import Arrival, Framing

READ_BYTES = 64 * 1024

OnArrival = Callable[[float, bytes], None]


@attrs.frozen(kw_only=True)
class Address:
    """Where a server is: what `--base-url` says, resolved once."""

    url: str
    """Without a slash, or a /v1, at its end."""
    host: str
    port: int
    path: str
    tls: bool
    family: socket.AddressFamily
    sockaddr: tuple[Any, ...]
    headers: str = ""
    """Lines that every request has."""

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """A request as bytes."""
        authority = self.host if ":" not in self.host else f"[{self.host}]"
        head = (
            f"{method} {self.path}{path} HTTP/1.1\r\nhost: {authority}:{self.port}\r\nconnection: close\r\n"
            f"accept: */*\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{self.headers}\r\n"
        )
        return head.encode() + body


@attrs.define(kw_only=True)
class Exchange:
    """One request and what came back."""

    start_s: float
    """Before the connection was opened, on trio's clock."""
    end_s: float = 0.0
    arrivals: list[Arrival] = attrs.field(factory=list)
    error: str | None = None
    """Why there is no whole answer, where the connection is the reason."""


async def resolve(url: str, *, api_key: str | None = None) -> Address:
    """The address of a base URL, with or without its /v1. Raises ConfigurationError."""
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigurationError(f"--base-url {url} is malformed: {error}.") from None
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise ConfigurationError(f"--base-url must look like http://127.0.0.1:8000/v1, not {url!r}.")
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise ConfigurationError("--api-key must be printable ASCII.")
    port = port or (443 if parts.scheme == "https" else 80)
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigurationError(f"--base-url {url}: {error.strerror or error}.") from None
    family, _, _, _, sockaddr = found[0]
    path = parts.path.rstrip("/").removesuffix("/v1")
    return Address(
        url=f"{parts.scheme}://{parts.netloc}{path}",
        host=host,
        port=port,
        path=path,
        tls=parts.scheme == "https",
        family=family,
        sockaddr=sockaddr,
        headers=f"authorization: Bearer {api_key}\r\n" if api_key else "",
    )


class Client:
    """Sends requests; made by `open_client`.

    One task reads all plain connections: each batch of arrivals costs one wake, and each arrival a read.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    async def exchange(
        self,
        address: Address,
        request: bytes,
        *,
        timeout_s: float,
        on_arrival: OnArrival | None = None,
    ) -> Exchange:
        """Send a request and keep what comes until the answer ends. What goes wrong is in `Exchange.error`, not raised.

        `on_arrival` is told of every arrival, at once. Cancelled, it closes the connection.
        """
        result = Exchange(start_s=trio.current_time())
        reading = _Reading(result, on_arrival)
        with trio.move_on_after(timeout_s) as scope:
            try:
                await (_over_tls if address.tls else self._over_tcp)(address, request, reading)
            except (OSError, trio.BrokenResourceError) as error:
                result.error = _reason(error)
        if scope.cancelled_caught:
            result.error = f"no whole answer within {timeout_s:g} s"
        result.end_s = trio.current_time()
        return result

    async def _over_tcp(self, address: Address, request: bytes, reading: "_Reading") -> None:
        with socket.socket(address.family, socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            code = sock.connect_ex(address.sockaddr)
            if code == errno.EINPROGRESS:
                await trio.lowlevel.wait_writable(sock)
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            left = memoryview(request)
            while left:
                try:
                    left = left[sock.send(left) :]
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(sock)
            self._selector.register(sock, selectors.EVENT_READ, reading)
            try:
                await reading.over.wait()
            finally:
                if not reading.over.is_set():
                    self._selector.unregister(sock)
        if reading.error is not None:
            raise reading.error

    async def _read(self) -> None:
        """Until cancelled."""
        selector = self._selector
        while True:
            await trio.lowlevel.wait_readable(selector)
            for key, _ in selector.select(0):
                reading: _Reading = key.data
                try:
                    data = key.fileobj.recv(READ_BYTES)  # type: ignore[union-attr]
                except BlockingIOError:
                    continue
                except OSError as error:
                    data, reading.error = b"", error
                if not reading.keep(data):
                    selector.unregister(key.fileobj)
                    reading.over.set()


@asynccontextmanager
async def open_client() -> AsyncIterator[Client]:
    """A client, for as long as the scope lasts."""
    client = Client()
    with client._selector:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client._read)
            yield client
            nursery.cancel_scope.cancel()


class _Reading:
    """The arrivals of one exchange."""

    def __init__(self, result: Exchange, on_arrival: OnArrival | None) -> None:
        self._arrivals = result.arrivals
        self._framing = Framing()
        self._on_arrival = on_arrival
        self.over = trio.Event()
        self.error: OSError | None = None

    def keep(self, data: bytes) -> bool:
        """Note an arrival; False when it was the last."""
        if not data:
            return False
        now = trio.current_time()
        self._arrivals.append((now, data))
        if self._on_arrival is not None:
            self._on_arrival(now, data)
        return not self._framing.ends_with(data)


async def _over_tls(address: Address, request: bytes, reading: _Reading) -> None:
    stream = await trio.open_ssl_over_tcp_stream(
        address.host, address.port, https_compatible=True, ssl_context=ssl.create_default_context()
    )
    try:
        await stream.send_all(request)
        while reading.keep(bytes(await stream.receive_some(READ_BYTES))):
            pass
    finally:
        await trio.aclose_forcefully(stream)


def _reason(error: Exception) -> str:
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, ssl.SSLError):
        return f"TLS failed: {cause.reason or cause}"
    if isinstance(cause, ConnectionRefusedError):
        return "the connection was refused"
    if isinstance(cause, ConnectionResetError | BrokenPipeError):
        return "the connection was reset"
    return f"the connection failed: {cause or error}"
