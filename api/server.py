"""The HTTP server: hypercorn's connections inside the caller's nursery, in the same trio run as the engine.

The socket is bound before the model is loaded (a port in use shows at once) and listens only when requests can be
answered. Stopping is bounded: whatever has not ended by then is cut.
"""

import logging
import os
import resource
import socket
import stat
from contextlib import suppress
from functools import partial

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext

from ..engine.core.errors import ConfigurationError
from .config import ServerConfig
from .connection import Connection
from .door import Door, PacedListener, refuse_at
from .gate import Asgi
from .heads import HEAD_BYTES_MAX
from .tls import tls_context
from .writing import WritePolicy

log = logging.getLogger(__name__)

BACKLOG = 2048
"""Connections that the kernel holds until they are accepted: a burst of clients must not wait for SYN retries."""

SPARE_DESCRIPTORS = 64
"""Descriptors that connections leave to the rest of the process."""

_TOO_MANY = (
    b'{"error":{"message":"The server has too many connections.","type":"server_error","param":null,'
    b'"code":"overloaded"}}'
)
TURNED_AWAY = b"HTTP/1.1 503 \r\n%b\r\n\r\n%b" % (
    b"\r\n".join(
        (
            b"content-type: application/json",
            b"retry-after: 5",
            b"connection: close",
            b"content-length: %d" % len(_TOO_MANY),
        )
    ),
    _TOO_MANY,
)
"""What a connection too many is told, without a parser spent on it."""

LINGER_S = 2.0
LINGER_BYTES = 4 << 20
MAX_LINGERING = 32
"""What it has sent is read and dropped after that, for so long, so much, and of so many at a time: where bytes are left
unread the close is a reset, and a reset may overtake the answer."""


def hypercorn_config(config: ServerConfig) -> Config:
    """What we set of hypercorn's configuration. `read_timeout` stays None: it would cut responses that stream."""
    result = Config()
    result.keep_alive_timeout = config.keep_alive_timeout
    result.h11_max_incomplete_size = HEAD_BYTES_MAX
    result.include_server_header = False
    result.alpn_protocols = ["h2", "http/1.1"] if config.http2 else ["http/1.1"]
    result.accesslog = None
    result.errorlog = log
    return result


def _bind(host: str, port: int) -> socket.socket:
    """A socket bound to the first address of `host`, IPv4 before IPv6. Raises OSError."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = min(addresses, key=lambda entry: entry[0] != socket.AF_INET)
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock


def _bind_file(path: str) -> socket.socket:
    """A socket file that only its owner can open. One that nobody listens on any more is replaced. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        sock.setblocking(False)
        _remove_stale(path)
        sock.bind(path)
    except BaseException:
        sock.close()
        raise
    finally:
        os.umask(before)
    return sock


def _remove_stale(path: str) -> None:
    if not (os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode)):
        return  # What is no socket stays: binding then says why it cannot be done.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)


class Server:
    """Binds on construction; serves in `run`; ends in `stop`."""

    def __init__(self, config: ServerConfig) -> None:
        """Raises ConfigurationError naming --host and --port when the address cannot be had."""
        self._config = hypercorn_config(config)
        self._tls = tls_context(config, self._config.alpn_protocols)
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_connections = max(1, min(config.max_connections, descriptors - SPARE_DESCRIPTORS))
        self._file = config.uds
        self._closed = False
        flags = f"--host {config.host} --port {config.port}" if config.uds is None else f"--uds {config.uds}"
        try:
            self._socket = _bind(config.host, config.port) if config.uds is None else _bind_file(config.uds)
        except OSError as error:
            raise ConfigurationError(f"Cannot listen on {flags}: {error.strerror or error}.") from None
        self._policy = WritePolicy(timeout_s=config.write_timeout)
        self._context = WorkerContext(None)
        self._accepting = trio.CancelScope()
        self._connections: trio.Nursery | None = None
        self._num_lingering = 0
        self._stopped = trio.Event()

    @property
    def port(self) -> int:
        """The port that was given, or found where it was 0; 0 for a socket file."""
        if self._file is not None:
            return 0
        return int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """Where to reach it."""
        if self._file is not None:
            return f"unix:{self._file}"
        host, port = self._socket.getsockname()[:2]
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://[{host}]:{port}" if self._socket.family == socket.AF_INET6 else f"{scheme}://{host}:{port}"

    @property
    def num_connections(self) -> int:
        """Connections that are open now."""
        return len(self._connections.child_tasks) if self._connections is not None else 0

    @property
    def num_blocked_writes(self) -> int:
        """Writes that wait for a client to read."""
        return len(self._policy.blocked)

    def close(self) -> None:
        """Give the address back. A socket file goes with it."""
        if self._file is not None and not self._closed:
            with suppress(FileNotFoundError):
                os.unlink(self._file)
        self._closed = True
        self._socket.close()

    async def run(self, app: Asgi, door: Door, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `stop`. Reports the URL once it listens. No fault of a connection or of `app` ends it."""
        self._socket.listen(BACKLOG)
        listeners = [PacedListener(self._socket, door, answers=self._tls is None)]
        url = self.url
        handler = partial(self._handle, ASGIWrapper(app), door)  # type: ignore[arg-type]
        async with trio.open_nursery() as nursery:
            self._connections = nursery
            with self._accepting:
                task_status.started(url)
                await trio.serve_listeners(handler, listeners, handler_nursery=nursery)
        self._stopped.set()

    async def _handle(self, app: ASGIWrapper, door: Door, stream: trio.SocketStream) -> None:
        if self.num_connections - self._num_lingering > self._max_connections:
            await self._turn_away(stream)
            return
        if self._tls is None and await refuse_at(door, stream):
            return
        transport: trio.SocketStream | trio.SSLStream[trio.SocketStream] = stream
        if self._tls is not None:
            transport = trio.SSLStream(stream, self._tls, server_side=True, https_compatible=True)
        await Connection(self._policy, app, self._config, self._context, transport).run()

    async def _turn_away(self, stream: trio.SocketStream) -> None:
        """Say so, unless TLS is spoken, and see to it that it can be heard."""
        with suppress(OSError):
            if self._tls is None:
                os.write(stream.socket.fileno(), TURNED_AWAY)
                if self._num_lingering < MAX_LINGERING:
                    stream.socket.shutdown(socket.SHUT_WR)
                    await self._linger(stream)
        await stream.aclose()

    async def _linger(self, stream: trio.SocketStream) -> None:
        """Drop what the client has sent, and still sends, until it closes."""
        self._num_lingering += 1
        try:
            num_left = LINGER_BYTES
            with trio.move_on_after(LINGER_S):
                while num_left > 0 and (data := await stream.socket.recv(65536)):
                    num_left -= len(data)
        finally:
            self._num_lingering -= 1

    def cut(self) -> None:
        """No write waits any more, not even those that a cancellation cannot reach: for an end at once."""
        self._policy.end_at(trio.current_time())

    async def stop(self, grace_s: float) -> None:
        """No new connections, idle ones close, and the others have `grace_s` to end; then `run` returns.

        Does not wait for that.
        """
        deadline_s = trio.current_time() + grace_s
        self._accepting.cancel()
        await self._context.terminated.set()
        self._policy.end_at(deadline_s)
        if self._connections is not None:
            self._connections.cancel_scope.deadline = deadline_s

    async def wait_stopped(self) -> None:
        """Until `run` is about to return."""
        await self._stopped.wait()
