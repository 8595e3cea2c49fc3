"""The HTTP server: hypercorn's connections inside the caller's nursery, in the same trio run as the engine.

The socket is bound before the model is loaded (a port in use shows at once) and listens only when requests can be
answered. Stopping is bounded: whatever has not ended by then is cut.
"""

import logging
import socket
from functools import partial

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext

from ..engine.core.errors import ConfigurationError
from .config import ServerConfig
from .connection import Connection, WritePolicy
from .gate import Asgi

log = logging.getLogger(__name__)

BACKLOG = 2048
"""Connections that the kernel holds until they are accepted: a burst of clients must not wait for SYN retries."""

HEAD_BYTES_MAX = 64 * 1024
"""Most bytes of a request's first line and headers; more is answered with 431."""


def hypercorn_config(config: ServerConfig) -> Config:
    """What we set of hypercorn's configuration. `read_timeout` stays None: it would cut responses that stream."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    result = Config()
    result.bind = [f"{host}:{config.port}"]
    result.backlog = BACKLOG
    result.keep_alive_timeout = config.keep_alive_timeout
    result.h11_max_incomplete_size = HEAD_BYTES_MAX
    result.include_server_header = False
    result.alpn_protocols = ["http/1.1"]
    result.accesslog = None
    result.errorlog = log
    return result


class Server:
    """Binds on construction; serves in `run`; ends in `stop`."""

    def __init__(self, config: ServerConfig) -> None:
        """Raises ConfigurationError naming --host and --port when the address cannot be had."""
        self._config = hypercorn_config(config)
        try:
            self._sockets = self._config.create_sockets().insecure_sockets
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigurationError(f"Cannot listen on --host {config.host} --port {config.port}: {reason}.") from None
        self._policy = WritePolicy(timeout_s=config.write_timeout)
        self._context = WorkerContext(None)
        self._accepting = trio.CancelScope()
        self._connections: trio.Nursery | None = None
        self._stopped = trio.Event()

    @property
    def port(self) -> int:
        """The port that was given, or found where it was 0."""
        return int(self._sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """Where to reach it."""
        host, port = self._sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if self._sockets[0].family == socket.AF_INET6 else f"http://{host}:{port}"

    @property
    def num_connections(self) -> int:
        """Connections that are open now."""
        return len(self._connections.child_tasks) if self._connections is not None else 0

    def close(self) -> None:
        """Give the address back without having served."""
        for sock in self._sockets:
            sock.close()

    async def run(self, app: Asgi, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `stop`. Reports the URL once it listens. No fault of a connection or of `app` ends it."""
        listeners = []
        for sock in self._sockets:
            sock.listen(BACKLOG)
            listeners.append(trio.SocketListener(trio.socket.from_stdlib_socket(sock)))
        url = self.url
        handler = partial(self._handle, ASGIWrapper(app))  # type: ignore[arg-type]
        async with trio.open_nursery() as nursery:
            self._connections = nursery
            with self._accepting:
                task_status.started(url)
                await trio.serve_listeners(handler, listeners, handler_nursery=nursery)
        self._stopped.set()

    async def _handle(self, app: ASGIWrapper, stream: trio.SocketStream) -> None:
        await Connection(self._policy, app, self._config, self._context, stream).run()

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
