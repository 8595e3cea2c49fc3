"""Reading and decoding the body of a request: bounded in bytes and time, and every mistake names its field.

A body is always drained: an unread one stops the connection's read loop, and a client's leaving would go unseen.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
import trio

from ..engine.core.errors import InvalidRequest
from .errors import BodyTimeout, BodyTooLarge

log = logging.getLogger(__name__)

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Headers = list[tuple[bytes, bytes]]
T = TypeVar("T")

LINGER_S = 2.0
LINGER_BYTES = 64 * 1024 * 1024

MOST_BRACKETS = 256 * 1024
"""Most opening brackets in a body, those inside texts included. 16 MiB of empty lists would take 1 s to decode, and
half a gigabyte."""

_PATH = re.compile(r"(?P<text>.*) - at (?:the key in )?`\$\.?(?P<path>[^`]*)`", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]+)`(?: - at `\$\.?(?P<path>[^`]*)`)?")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]+)`(?: - at `\$\.?(?P<path>[^`]*)`)?")


def header(headers: Headers, name: bytes) -> bytes | None:
    """The first header of this (lower case) name. ASGI gives names in lower case."""
    return next((value for key, value in headers if key == name), None)


def too_large(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body of a request may have at most {limit_bytes} bytes (--max-body-size).")


async def read_body(headers: Headers, receive: Receive, *, limit_bytes: int, timeout_s: float) -> bytes | None:
    """The whole body, or None when the client has left.

    Raises BodyTooLarge as soon as more than `limit_bytes` are announced or have come, BodyTimeout after `timeout_s`.
    """
    announced = header(headers, b"content-length") or b""
    if announced.isdigit() and int(announced) > limit_bytes:
        raise too_large(limit_bytes)
    chunks: list[bytes] = []
    size = 0
    with trio.move_on_after(timeout_s):
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > limit_bytes:
                raise too_large(limit_bytes)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)
    raise BodyTimeout(f"The body of the request did not arrive within {timeout_s:g} s.")


async def discard_body(receive: Receive) -> None:
    """Let a client that is still sending see its answer: drop what comes, for a short time and up to a size."""
    dropped = 0
    with trio.move_on_after(LINGER_S):
        while dropped < LINGER_BYTES:
            message = await receive()
            dropped += len(message.get("body", b""))
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                return


def decode(body: bytes, type_: type[T]) -> T:
    """Check `body` against `type_`: InvalidRequest names the field.

    Fields that `type_` lacks are ignored, and their names logged at debug.
    """
    if len(body) > MOST_BRACKETS and body.count(b"[") + body.count(b"{") > MOST_BRACKETS:
        raise InvalidRequest(f"The body holds more than {MOST_BRACKETS} lists and objects.")
    try:
        request = msgspec.json.decode(body, type=type_)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidRequest(f"The body is not valid JSON: {reason}.") from None
    if log.isEnabledFor(logging.DEBUG):
        known = {field.encode_name for field in msgspec.structs.fields(type_)}  # type: ignore[arg-type]
        unknown = msgspec.json.decode(body, type=dict[str, msgspec.Raw]).keys() - known
        if unknown:
            log.debug("ignored unknown fields: %s", ", ".join(repr(name[:64]) for name in sorted(unknown)))
    return request


def _invalid(text: str) -> InvalidRequest:
    """msgspec's message with its path turned into `param`: `$.messages[0].role` is messages[0].role."""
    missing = _MISSING.fullmatch(text)
    if missing is not None:
        param = ".".join(part for part in (missing["path"], missing["name"]) if part)
        return InvalidRequest(f"{param} is required.", param=param)
    unknown = _UNKNOWN.fullmatch(text)
    if unknown is not None:
        param = ".".join(part for part in (unknown["path"], unknown["name"][:64]) if part)
        return InvalidRequest(f"{param} is not a field of this request.", param=param)
    match = _PATH.fullmatch(text)
    if match is None or not match["path"]:
        return InvalidRequest(f"The body must be a JSON object: {text[:1].lower()}{text[1:]}.")
    what = match["text"][:1].lower() + match["text"][1:]
    return InvalidRequest(f"{match['path']} is malformed: {what}.", param=match["path"])
