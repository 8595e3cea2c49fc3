"""The terms of a request: what it is called, how long it may take, how it stands among the others.

They come from the body and from headers (a proxy or a gateway can set those), and from the server's defaults. The
answer itself does not depend on them.
"""

import math
import re
import uuid
from typing import Protocol

import attrs

from ..engine.core.errors import InvalidRequest
from ..engine.options import RequestOptions
from .body import Headers, header
from .config import ServerConfig
from .spans import TraceContext

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_KEY = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,126}[\x21-\x7e])?")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,32}(?:\.[0-9]{0,32})?|\.[0-9]{1,32})(?:[eE][+-]?[0-9]{1,3})?")
_SALT_TEXT = re.compile(r"[^\x00/@\\]{1,128}")
_PRIORITY_MAX = 2**31 - 1

TRACE_HEADER_MAX = 512

SECONDS = "a number of seconds above 0"


@attrs.frozen(kw_only=True)
class Envelope:
    """What came with a body."""

    headers: Headers
    caller: str
    """The same for all requests of one API key; empty where no key is asked for."""
    arrival_time: float
    """A moment of the trio clock."""

    @property
    def request_id(self) -> str | None:
        """As `request_id_of`."""
        return request_id_of(self.headers)


@attrs.frozen(kw_only=True)
class Terms:
    """The terms of one HTTP request."""

    request_id: str
    caller: str
    options: RequestOptions
    trace: TraceContext | None = None
    """Set where spans are wanted."""


def request_id_of(headers: Headers) -> str | None:
    """`X-Request-Id`, where it is fit to be one; anything else in that header is somebody else's business."""
    given = _text(headers, b"x-request-id")
    return given if given is not None and REQUEST_ID.fullmatch(given) else None


def new_request_id() -> str:
    return uuid.uuid4().hex


class Asking(Protocol):
    """The fields of a body that its terms are read from."""

    request_id: str | None
    timeout: float | None
    max_queue_time: float | None
    priority: int | None
    cache_salt: str | None


def read_terms(request: Asking, envelope: Envelope, config: ServerConfig) -> Terms:
    """Raises InvalidRequest naming the field or the header."""
    headers, now = envelope.headers, envelope.arrival_time
    given = [
        _seconds("timeout", request.timeout),
        _header_seconds(headers, "X-Request-Timeout"),
    ]
    timeout_s = min((seconds for seconds in given if seconds is not None), default=config.default_timeout)
    max_queue_time_s = _seconds("max_queue_time", request.max_queue_time)
    if max_queue_time_s is None:
        max_queue_time_s = config.max_queue_time
    fairness_key = _header_key(headers, "X-Fairness-Key")
    supersede_key = _header_key(headers, "X-Supersede-Key")
    options = RequestOptions(
        priority=_priority(request.priority),
        fairness_key=envelope.caller if fairness_key is None else f"{envelope.caller}/{fairness_key}",
        deadline=None if timeout_s is None else now + timeout_s,
        max_queue_time_s=max_queue_time_s,
        supersede_key=None if supersede_key is None else f"{envelope.caller}/{supersede_key}",
        extra_keys=_extra_keys(request.cache_salt, envelope.caller if config.cache_isolation else None),
    )
    return Terms(
        request_id=_request_id(request.request_id, envelope),
        caller=envelope.caller,
        options=options,
        trace=None if config.otlp_traces_endpoint is None else _trace_context(headers),
    )


def _trace_context(headers: Headers) -> TraceContext:
    """W3C's headers as they are; what is not well-formed in them counts for nothing, as W3C has it, and so does what is
    longer than W3C wants it to be passed on: it is kept until it is sent."""
    given = (_text(headers, name) for name in (b"traceparent", b"tracestate"))
    traceparent, tracestate = (text if text is not None and len(text) <= TRACE_HEADER_MAX else None for text in given)
    return TraceContext(traceparent=traceparent, tracestate=tracestate)


def _request_id(given: str | None, envelope: Envelope) -> str:
    """The header's, else the body's, else a new one."""
    if given is not None and not REQUEST_ID.fullmatch(given):
        raise InvalidRequest("request_id must be 1 to 128 letters, digits or characters of `._:-`.", param="request_id")
    return envelope.request_id or given or new_request_id()


def _seconds(name: str, value: float | None) -> float | None:
    if value is None or (math.isfinite(value) and value > 0):
        return value
    raise InvalidRequest(f"{name} must be {SECONDS}, not {value!r}.", param=name)


def _header_seconds(headers: Headers, name: str) -> float | None:
    text = _text(headers, name.lower().encode())
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise InvalidRequest(f"{name} must be {SECONDS}, not {text[:64]!r}.", param=name)
    return _seconds(name, float(text))


def _header_key(headers: Headers, name: str) -> str | None:
    text = _text(headers, name.lower().encode())
    if text is None or _KEY.fullmatch(text):
        return text
    raise InvalidRequest(f"{name} must be 1 to 128 printable ASCII characters.", param=name)


def _priority(value: int | None) -> int:
    if value is None:
        return 0
    if not -_PRIORITY_MAX <= value <= _PRIORITY_MAX:
        raise InvalidRequest(
            f"priority must be an integer from {-_PRIORITY_MAX} to {_PRIORITY_MAX}, not {value}.", param="priority"
        )
    return value


def _extra_keys(cache_salt: str | None, caller: str | None) -> tuple[str, ...]:
    """Joined into the prefix hash. A salt has no separators, so that no two lists of keys read alike.

    With `caller` set, only requests of that caller share blocks; a salt divides those further.
    """
    own = () if caller is None else (f"@{caller}",)
    if cache_salt is None:
        return own
    if not _SALT_TEXT.fullmatch(cache_salt):
        raise InvalidRequest(
            "cache_salt must have 1 to 128 characters, none of them NUL, '/', '@' or '\\'.", param="cache_salt"
        )
    return (*own, cache_salt)


def _text(headers: Headers, name: bytes) -> str | None:
    value = header(headers, name)
    return None if value is None else value.decode("latin-1")
