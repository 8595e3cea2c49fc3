"""The one door of the server: every HTTP request passes here, and is refused here unless it may come in.

Default deny: with keys set, only the exact path /health goes through without one, whatever the host, the form of the
request's target or its method are. Then the generating routes are raw ASGI, and Quart has the rest.
"""

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from ..engine.core.errors import TrioletError, Unauthorized
from .body import Headers, Receive, header
from .errors import MethodNotAllowed, VersionRefused, as_http
from .reply import Reply, Send

Asgi = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]

OPEN_PATH = b"/health"


class Gate:
    """An ASGI application: `routes` maps a path to the application that answers its POSTs, `rest` answers all else."""

    def __init__(self, *, keys: tuple[str, ...], routes: Mapping[str, Asgi], rest: Asgi) -> None:
        self._key_digests = tuple(_digest(key.encode()) for key in keys)
        self._routes = routes
        self._rest = rest

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise AssertionError(f"a connection of type {scope['type']} got past the server")
        try:
            if not scope["http_version"].startswith("1."):
                raise VersionRefused("This server speaks HTTP/1.1 only.")
            if self._key_digests and scope["raw_path"] != OPEN_PATH:
                self._check_key(scope["headers"])
            if not scope["path"].startswith("/"):
                scope = {**scope, "path": urlsplit(scope["path"]).path or "/"}
            route = self._routes.get(scope["path"])
            if route is None:
                route = self._rest
            elif scope["method"] != "POST":
                raise MethodNotAllowed(f"{scope['path']} answers POST, not {scope['method'][:32]}.", allow="POST")
        except TrioletError as error:
            # The body may still be coming: the connection is not used again.
            answer = as_http(error)
            reply = Reply(send)
            await reply.json(answer.status, answer.body, (*answer.headers, (b"connection", b"close")))
            return
        await route(scope, receive, send)

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
