"""The gate of the server: every HTTP request passes here, and is refused here unless it may come in. (What comes while
the queue is full is told so in front of the parser, by `door.py`, in the gate's words.)

Default deny: with keys set, only the exact target /health goes through without one (`keys.py`), and the page's files
with a cookie that was given for one (`page/entrance.py`), whatever the host, the form of the request's target or its
method are. Then the body is read, bounded in bytes and time, and handed on whole:
to the generating routes, which are raw ASGI, or to Quart, which has the rest.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..engine.core.errors import InvalidRequest, Unauthorized
from .body import Receive, discard_body, header, read_body
from .config import ServerConfig
from .dialect import dialect_of
from .door import Door, Refusal
from .errors import HeadersTooLarge, MethodNotAllowed, VersionRefused
from .heads import HEAD_BYTES_MAX, HEAD_TOO_LARGE, check_media_type, path_of
from .keys import Caller, KeyRing, authorization_of
from .page.entrance import Entrance
from .reply import Reply, Send
from .terms import new_request_id, request_id_of

Scope = dict[str, Any]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
Route = Callable[[Scope, bytes, Receive, Send], Awaitable[None]]
"""Like an ASGI application, with the body read already."""

Shown = tuple[bytes, tuple[tuple[bytes, bytes], ...]]
"""A page, and its headers."""

CALLER = "triolet.caller"
"""Where a scope has its `Caller`."""

FRAMING = (b"content-length", b"transfer-encoding")
"""Either says where a body ends. Two that differ may be two requests to a proxy in front, and one here."""

MAX_HEADERS = 256
"""Most header lines of a request: each is looked at one by one."""


class Gate:
    """An ASGI application: `routes` maps a path to what answers its POSTs, `streams` to what answers its GETs, `rest`
    answers all else."""

    def __init__(
        self,
        config: ServerConfig,
        *,
        routes: Mapping[str, Route],
        streams: Mapping[str, Route],
        rest: Asgi,
        entrance: Entrance,
        refusal: Refusal = lambda: None,
    ) -> None:
        """`refusal` says why no route of `routes` would take a request now: it is told before its body is read."""
        self._config = config
        self._refusal = refusal
        self._keys = KeyRing(config.api_key, config.admin_api_key)
        self._routes = routes
        self._streams = streams
        self._entrance = entrance
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
        except Exception as error:
            shown = self._entrance.refusal(scope) if isinstance(error, Unauthorized) else None
            await _refuse(error, scope, receive, send, shown)
            return
        if body is None:
            return
        if route is not None:
            await route(scope, body, receive, send)
        else:
            await self._rest(scope, _replay(body, receive), send)

    def _admit(self, scope: Scope) -> Route | None:
        """The route for a request, None for the rest. Raises what it is refused for."""
        if not (scope["http_version"].startswith("1.") or (self._config.http2 and scope["http_version"] == "2")):
            raise VersionRefused("This server speaks HTTP/1.1 only.")
        scope["path"] = path_of(scope["path"])
        self._strip_root(scope)
        if self._entrance.lets_in(scope):
            scope[CALLER] = Caller()
        else:
            authorization = authorization_of(
                header(scope["headers"], b"authorization"), header(scope["headers"], b"x-api-key")
            )
            scope[CALLER] = self._keys.admit(authorization, scope["raw_path"], scope["path"])
        if len(scope["headers"]) > MAX_HEADERS:
            raise HeadersTooLarge(f"A request may have at most {MAX_HEADERS} headers.")
        # The parser looks at its limit when it has read on, which may be as much again.
        if sum(len(name) + len(value) for name, value in scope["headers"]) + len(scope["raw_path"]) > HEAD_BYTES_MAX:
            raise HeadersTooLarge(HEAD_TOO_LARGE)
        if sum(name in FRAMING for name, _ in scope["headers"]) > 1:
            raise InvalidRequest("A request has a Content-Length or a Transfer-Encoding, not both.")
        if scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            check_media_type(scope["headers"], self._config.allowed_origins)
        stream = self._streams.get(scope["path"])
        route = self._routes.get(scope["path"], stream)
        method = "POST" if stream is None else "GET"
        if route is not None and scope["method"] != method:
            raise MethodNotAllowed(f"{scope['path']} answers {method}, not {scope['method'][:32]}.", allow=method)
        if route is not None and stream is None and (refusal := self._refusal()) is not None:
            raise refusal.with_traceback(None)  # Perhaps one object, raised often: it must not collect frames.
        return route

    def door(self) -> Door:
        """What says, in front of the parser, to a request for a generating route what the gate would say."""
        return Door(self._refusal, self._keys, self._routes, self._config.root_path)

    def _strip_root(self, scope: Scope) -> None:
        """Take off what a proxy has left in front: from here on the request is as one that came without."""
        root = self._config.root_path
        if root and scope["path"].startswith(root + "/"):
            scope["path"] = scope["path"][len(root) :]
            raw, prefix = scope["raw_path"], root.encode()
            if raw.startswith(prefix + b"/"):
                scope["raw_path"] = raw[len(prefix) :]


async def _refuse(error: Exception, scope: Scope, receive: Receive, send: Send, shown: Shown | None) -> None:
    """Answer before the body has come, then drop what still comes: many clients read only when all is sent. `shown`:
    what a browser is to see instead of the error's object."""
    dialect = dialect_of(scope["path"])
    told = dialect.http(error)
    reply = Reply(send, request_id=request_id_of(scope["headers"]) or new_request_id(), id_headers=dialect.id_headers)
    last = (*told.headers, (b"connection", b"close"))
    if shown is None:
        await reply.json(told.status, dialect.body(told), last, more=True)
    else:
        html, headers = shown
        await reply.html(told.status, html, (*headers, *last), more=True)
    await discard_body(receive)
    await reply.end()


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body first, and then what the real one gives."""
    first: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Mapping[str, Any]:
        return first.pop() if first else await receive()

    return replay
