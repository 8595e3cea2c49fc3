"""A client that costs little: one request on one connection, its answer kept as bytes with the times of their arrival.

Imports trio. It shares its machine with the server that it measures, so nothing is decoded while the clock runs
(`response.py` does that afterwards), and a plain connection is a bare socket: a wait and a read for each arrival. Every
request has a connection of its own, because some servers close theirs after an answer.
"""

import errno
import socket
import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import attrs
import trio

from ...engine.core.errors import ConfigurationError
from .response import Arrival, Framing

READ_BYTES = 64 * 1024


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


async def exchange(
    address: Address, request: bytes, *, timeout_s: float, on_arrival: Callable[[float], None] | None = None
) -> Exchange:
    """Send a request and keep what comes until the answer ends. What goes wrong is in `Exchange.error`, not raised.

    `on_arrival` is told the time of every arrival, at once. Cancelled, it closes the connection.
    """
    result = Exchange(start_s=trio.current_time())
    with trio.move_on_after(timeout_s) as scope:
        try:
            await (_over_tls if address.tls else _over_tcp)(address, request, result, on_arrival)
        except (OSError, trio.BrokenResourceError) as error:
            result.error = _reason(error)
    if scope.cancelled_caught:
        result.error = f"no whole answer within {timeout_s:g} s"
    result.end_s = trio.current_time()
    return result


async def _over_tcp(
    address: Address, request: bytes, result: Exchange, on_arrival: Callable[[float], None] | None
) -> None:
    framing = Framing()
    with socket.socket(address.family, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        code = sock.connect_ex(address.sockaddr)
        if code == errno.EINPROGRESS:
            await trio.lowlevel.wait_writable(sock)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, errno.errorcode.get(code, str(code)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        left = memoryview(request)
        while left:
            try:
                left = left[sock.send(left) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(sock)
        while True:
            await trio.lowlevel.wait_readable(sock)
            try:
                data = sock.recv(READ_BYTES)
            except BlockingIOError:
                continue
            if not _keep(result, framing, data, on_arrival):
                return


async def _over_tls(
    address: Address, request: bytes, result: Exchange, on_arrival: Callable[[float], None] | None
) -> None:
    framing = Framing()
    stream = await trio.open_ssl_over_tcp_stream(
        address.host, address.port, https_compatible=True, ssl_context=ssl.create_default_context()
    )
    try:
        await stream.send_all(request)
        while _keep(result, framing, bytes(await stream.receive_some(READ_BYTES)), on_arrival):
            pass
    finally:
        await trio.aclose_forcefully(stream)


def _keep(result: Exchange, framing: Framing, data: bytes, on_arrival: Callable[[float], None] | None) -> bool:
    """Note an arrival; False when it was the last."""
    if not data:
        return False
    now = trio.current_time()
    result.arrivals.append((now, data))
    if on_arrival is not None:
        on_arrival(now)
    return not framing.ends_with(data)


def _reason(error: Exception) -> str:
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, ssl.SSLError):
        return f"TLS failed: {cause.reason or cause}"
    if isinstance(cause, ConnectionRefusedError):
        return "the connection was refused"
    if isinstance(cause, ConnectionResetError | BrokenPipeError):
        return "the connection was reset"
    return f"the connection failed: {cause or error}"
