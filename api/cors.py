"""Which web pages may call the server from a browser: Cross-Origin Resource Sharing, off unless origins are named.

A browser asks first (a preflight), and without a key: that is answered here, for named origins alone. All else passes
on to the gate, key and all; what comes back is marked for the browser. A page that is not named gets no mark, and its
browser keeps the answer from it.
"""

from typing import Any

from .body import Receive, discard_body, header
from .config import ServerConfig
from .gate import Asgi, Scope
from .reply import Send

METHODS = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
MAX_AGE_S = 600
EXPOSED = b"x-request-id, retry-after"
"""Headers of ours that a page may read, beside the few that it always may."""


class Cors:
    """An ASGI application around another."""

    def __init__(self, config: ServerConfig, app: Asgi) -> None:
        self._app = app
        self._origins = frozenset(origin.encode("latin-1") for origin in config.allowed_origins)
        self._anybody = b"*" in self._origins
        methods = METHODS if "*" in config.allowed_methods else ", ".join(config.allowed_methods)
        self._methods = methods.upper().encode("latin-1")
        self._headers = b"" if "*" in config.allowed_headers else ", ".join(config.allowed_headers).encode("latin-1")
        self._credentials = config.allow_credentials

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope.get("headers", [])
        origin = header(headers, b"origin")
        if scope["type"] != "http" or origin is None:
            await self._app(scope, receive, send)
            return
        marks = self._marks(origin)
        asked = header(headers, b"access-control-request-method")
        if len(marks) > 1 and scope["method"] == "OPTIONS" and asked is not None:
            allowed = self._headers or header(headers, b"access-control-request-headers") or b""
            marks += [
                (b"access-control-allow-methods", self._methods),
                (b"access-control-allow-headers", allowed),
                (b"access-control-max-age", b"%d" % MAX_AGE_S),
            ]
            await discard_body(receive)
            await send({"type": "http.response.start", "status": 204, "headers": marks})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return

        async def marked(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *marks]}
            await send(message)

        await self._app(scope, receive, marked)

    def _marks(self, origin: bytes) -> list[tuple[bytes, bytes]]:
        """The headers of an answer; one that does not name the origin only says that it depends on it."""
        marks = [(b"vary", b"Origin")]
        if self._anybody or origin in self._origins:
            marks.append((b"access-control-allow-origin", b"*" if self._anybody else origin))
            marks.append((b"access-control-expose-headers", EXPOSED))
            if self._credentials:
                marks.append((b"access-control-allow-credentials", b"true"))
        return marks
