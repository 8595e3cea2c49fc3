"""The one door of the server: every HTTP request passes here, and is refused here unless it may come in.

Default deny: with keys set, only the exact path /health goes through without one, whatever the host, the form of the
request's target or its method are. Then the body is read, bounded in bytes and time, and handed on whole: to the
generating routes, which are raw ASGI, or to Quart, which has the rest.
"""

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from ..engine.core.errors import TrioletError, Unauthorized
from .body import Headers, Receive, discard_body, header, read_body
from .config import ServerConfig
from .errors import MethodNotAllowed, VersionRefused, as_http
from .reply import Reply, Send

Scope = dict[str, Any]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
Route = Callable[[Scope, bytes, Receive, Send], Awaitable[None]]
"""Like an ASGI application, with the body read already."""

OPEN_PATH = b"/health"


class Gate:
    """An ASGI application: `routes` maps a path to what answers its POSTs, `rest` answers all else."""

    def __init__(self, config: ServerConfig, *, routes: Mapping[str, Route], rest: Asgi) -> None:
        self._config = config
        self._key_digests = tuple(_digest(key.encode()) for key in config.api_key)
        self._routes = routes
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise AssertionError(f"a connection of type {scope['type']} got past the server")
        try:
            route = self._admit(scope)
            body = await read_body(
                scope["headers"],
                receive,
                limit_bytes=self._config.max_body_size,
                timeout_s=self._config.body_timeout,
            )
        except TrioletError as error:
            await _refuse(error, receive, send)
            return
        if body is None:
            return
        if route is not None:
            await route(scope, body, receive, send)
        else:
            await self._rest(scope, _replay(body, receive), send)

    def _admit(self, scope: Scope) -> Route | None:
        """The route for a request, None for the rest. Raises what it is refused for."""
        if not scope["http_version"].startswith("1."):
            raise VersionRefused("This server speaks HTTP/1.1 only.")
        if self._key_digests and scope["raw_path"] != OPEN_PATH:
            self._check_key(scope["headers"])
        if not scope["path"].startswith("/"):
            scope["path"] = urlsplit(scope["path"]).path or "/"
        route = self._routes.get(scope["path"])
        if route is not None and scope["method"] != "POST":
            raise MethodNotAllowed(f"{scope['path']} answers POST, not {scope['method'][:32]}.", allow="POST")
        return route

    def _check_key(self, headers: Headers) -> None:
        """Compare digests, all of them, in constant time: how wrong a key is does not show in the time it takes."""
        value = header(headers, b"authorization") or b""
        scheme, _, key = value.partition(b" ")
        given = _digest(key.strip())
        matches = [hmac.compare_digest(given, digest) for digest in self._key_digests]
        if not (any(matches) and scheme.lower() == b"bearer"):
            how = "a wrong API key" if value else "no API key"
            raise Unauthorized(f"The request has {how}: send one as `Authorization: Bearer KEY`.")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


async def _refuse(error: TrioletError, receive: Receive, send: Send) -> None:
    """Answer before the body has come, then drop what still comes: many clients read only when all is sent."""
    answer = as_http(error)
    reply = Reply(send)
    await reply.json(answer.status, answer.body, (*answer.headers, (b"connection", b"close")), more=True)
    await discard_body(receive)
    await reply.end()


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body first, and then what the real one gives."""
    first: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Mapping[str, Any]:
        return first.pop() if first else await receive()

    return replay
