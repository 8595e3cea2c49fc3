"""The api's own refusals, and the one place where an exception becomes an HTTP answer.

    RequestError (engine)
    ├── Forbidden          403   the key opens other routes, not this one
    ├── NotFound           404   no such route, or no request of that name
    ├── MethodNotAllowed   405   says which methods there are
    ├── Cancelled          400   ended from outside, and a part of an answer is of no use
    ├── BodyTimeout        408   the body did not come in time
    ├── TimedOut           408   its own time was over, and a part of an answer is of no use
    ├── Conflict           409   cannot be done as things are now
    ├── BodyTooLarge       413   says the limit
    ├── WrongMediaType     415   a body that is called something else than JSON
    ├── HeadersTooLarge    431   too many headers, or too long ones
    ├── MalformedHttp      400   what came is no HTTP; its connection ends
    ├── ThreadUnsupported  400   Messages: conversations are not kept here
    ├── VersionRefused     505   HTTP/2 where --no-http2 is set
    └── ShuttingDown       503   says when to come back

`as_http` lets no path, address or traceback out: what it does not know is a 500 with a fixed text, and is logged here.
"""

import logging
import re

import attrs
import msgspec

from ..engine.core.errors import RequestError, TrioletError

log = logging.getLogger(__name__)

_UNKNOWN = "The server met an error of its own; this request failed, and its log says why."


class Forbidden(RequestError):
    """The key is good, but not for this route."""

    status = 403
    type = "invalid_request_error"
    code = "forbidden"


class TimedOut(RequestError):
    """The request's time was over before it had an answer, and half an answer is of no use."""

    status = 408
    type = "invalid_request_error"
    code = "timeout"


class Cancelled(RequestError):
    """The request was ended from outside before it had an answer."""

    status = 400
    type = "invalid_request_error"
    code = "cancelled"


class ThreadUnsupported(RequestError):
    """A conversation was to be kept here between Messages. Anthropic's clients know the code and send it whole."""

    status = 400
    type = "invalid_request_error"
    code = "thread_unsupported_request"


class NotFound(RequestError):
    """No route has this path, or no request this name."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class Conflict(RequestError):
    """What is asked for cannot be done as things are now."""

    status = 409
    type = "invalid_request_error"
    code = "conflict"


class MethodNotAllowed(RequestError):
    """The route exists, with other methods: `allow` lists them."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class BodyTimeout(RequestError):
    """The client took too long to send its request."""

    status = 408
    type = "invalid_request_error"
    code = "body_timeout"


class BodyTooLarge(RequestError):
    """The body is over the limit; the rest of it is not kept."""

    status = 413
    type = "invalid_request_error"
    code = "body_too_large"


class WrongMediaType(RequestError):
    """The body says that it is no JSON, or does not say so where a web page sends it."""

    status = 415
    type = "invalid_request_error"
    code = "unsupported_media_type"


class MalformedHttp(RequestError):
    """No request can be read from what came."""

    status = 400
    type = "invalid_request_error"
    code = "malformed_http"


class HeadersTooLarge(RequestError):
    """The head of the request is over a limit."""

    status = 431
    type = "invalid_request_error"
    code = "headers_too_large"


class VersionRefused(RequestError):
    """HTTP/2 is not spoken here (--no-http2)."""

    status = 505
    type = "invalid_request_error"
    code = "http_version_not_supported"


class ShuttingDown(RequestError):
    """The server has been told to stop."""

    status = 503
    code = "shutting_down"
    retry_after_s = 5


class ErrorObject(msgspec.Struct, frozen=True):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every answer that is an error, and the event that ends a broken stream."""

    error: ErrorObject


@attrs.frozen(kw_only=True)
class HttpError:
    """An error, ready to be sent."""

    status: int
    error: ErrorObject
    headers: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def body(self) -> bytes:
        """In OpenAI's shape."""
        return msgspec.json.encode(ErrorBody(self.error))


def as_http(error: BaseException) -> HttpError:
    """What tells a client about `error`. An unknown error is logged with its traceback."""
    if not isinstance(error, TrioletError):
        log.error("a request failed for a reason that is not the client's", exc_info=error)
        error = RequestError(_UNKNOWN)
    headers: list[tuple[bytes, bytes]] = []
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        headers.append((b"retry-after", str(retry_after_s).encode()))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allow.encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    told = ErrorObject(message=scrub(error.message), type=error.type, param=error.param, code=error.code)
    return HttpError(status=error.status, error=told, headers=tuple(headers))


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_MACHINE_PATH = re.compile(
    r"(?<![\w/:.])/(?:bin|boot|data|dev|etc|home|lib|lib64|mnt|opt|proc|root|run|srv|sys|tmp|usr|var)/\S+"
)


def scrub(message: str) -> str:
    """A message without the addresses of objects, and without paths of this machine: a library may have put some in."""
    return _MACHINE_PATH.sub("[path]", _ADDRESS.sub("", message))


def leaf_error(group: BaseExceptionGroup[BaseException]) -> Exception | None:
    """The one error of a group that a client should hear of: a known one before an unknown one.

    None when all of them are cancellations.
    """
    leaves: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending:
        error = pending.pop(0)
        if isinstance(error, BaseExceptionGroup):
            pending.extend(error.exceptions)
        else:
            leaves.append(error)
    known = [error for error in leaves if isinstance(error, TrioletError)]
    others = [error for error in leaves if isinstance(error, Exception)]
    return (known or others or [None])[0]
