"""What a server answered, from its bytes and the moments at which they came: HTTP/1.1 and server-sent events.

Pure: the standard library and attrs. A benchmark keeps the bytes while its clock runs and reads them afterwards, so all
that runs beside the server is `Framing`: has the answer ended? Servers cut events anywhere, end lines with LF, CRLF or
CR, send comments, or leave the connection open; all of that is read alike.
"""

import re
from collections.abc import Iterable

import attrs

MAX_HEAD_BYTES = 64 * 1024

_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_LAST_CHUNK = b"\r\n0\r\n\r\n"

Arrival = tuple[float, bytes]
"""Bytes, and when they were received, in seconds."""


class MalformedResponse(Exception):
    """It isn't HTTP/1.1; the message says where."""


@attrs.frozen(kw_only=True)
class Response:
    """An answer, as far as it came."""

    status: int
    events: tuple[Arrival, ...]
    """The data of each server-sent event, and when its last byte came."""
    body: bytes
    complete: bool
    """Whether it came to the end that its framing promises."""


class Framing:
    """Finds the end of an answer as it comes, at a cost of well under a microsecond for each piece."""

    def __init__(self) -> None:
        self._head: bytes | None = b""
        self._tail = b"\r\n"
        self._left: int | None = None
        self._chunked = False

    def ends_with(self, data: bytes) -> bool:
        """Take the next bytes: True when they end the answer. An answer without a length ends with its connection."""
        if self._head is not None:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return len(self._head) > MAX_HEAD_BYTES
            head, data = self._head[: end + 2], self._head[end + 4 :]
            if head.startswith((b"HTTP/1.1 1", b"HTTP/1.0 1")):
                self._head = b""
                return bool(data) and self.ends_with(data)
            self._head = None
            self._chunked = _CHUNKED.search(head) is not None
            if not self._chunked and (length := _LENGTH.search(head)):
                self._left = int(length[1])
        if self._left is not None:
            self._left -= len(data)
            return self._left <= 0
        if not self._chunked:
            return False
        # A stream's events end with a blank line of their own, so that the end of chunks is nothing else.
        self._tail = (self._tail + data)[-len(_LAST_CHUNK) :] if len(data) < len(_LAST_CHUNK) else data[-7:]
        return self._tail == _LAST_CHUNK


def read_response(arrivals: Iterable[Arrival]) -> Response:
    """The whole of an answer. Raises MalformedResponse, also when there is nothing."""
    arrivals = list(arrivals)
    head, rest = _split_head(arrivals)
    status = _status(head)
    chunked = _CHUNKED.search(head) is not None
    length = None if chunked else _LENGTH.search(head)
    complete = True
    if chunked:
        rest, complete = _unchunk(rest)
    body = b"".join(data for _, data in rest)
    if length is not None:
        complete = len(body) >= int(length[1])
    return Response(status=status, events=tuple(_events(rest)), body=body, complete=complete)


def _split_head(arrivals: list[Arrival]) -> tuple[bytes, list[Arrival]]:
    """The head (status line and headers, each after a line end), interim ones skipped; and what follows."""
    data = b""
    for index, (time_s, more) in enumerate(arrivals):
        data += more
        while (end := data.find(b"\r\n\r\n")) >= 0:
            head, data = data[: end + 2], data[end + 4 :]
            if not head.startswith((b"HTTP/1.1 1", b"HTTP/1.0 1")):
                return head, [(time_s, data), *arrivals[index + 1 :]]
    raise MalformedResponse("the connection was closed without an answer" if not data else _not_http(data))


def _status(head: bytes) -> int:
    match = re.match(rb"HTTP/1\.[01] (\d{3})", head)
    if match is None:
        raise MalformedResponse(_not_http(head))
    return int(match[1])


def _not_http(data: bytes) -> str:
    return f"the answer is not HTTP/1.1: {data[:40]!r}"


def _unchunk(arrivals: list[Arrival]) -> tuple[list[Arrival], bool]:
    """The content of chunks, wherever they were cut, and whether the last chunk came."""
    content: list[Arrival] = []
    data, left = b"", 0  # left: bytes of the chunk still to come, and the line end after it
    for time_s, more in arrivals:
        data += more
        found = b""
        while data:
            if left:
                taken, data = data[:left], data[left:]
                found += taken[: max(0, left - 2)]
                left -= len(taken)
                continue
            line, mark, after = data.partition(b"\r\n")
            if not mark:
                break
            data = after
            try:
                size = int(line.split(b";")[0], 16)
            except ValueError:
                raise MalformedResponse(f"a chunk begins with {line[:40]!r}, not with its size") from None
            if size == 0:
                return [*content, (time_s, found)], True
            left = size + 2
        content.append((time_s, found))
    return content, False


def _events(arrivals: Iterable[Arrival]) -> Iterable[Arrival]:
    """The data of every event that is complete. Comments and other fields are passed over."""
    text = b""
    after_cr = False  # an LF belongs to the CR before it
    for time_s, data in arrivals:
        if not data:
            continue
        if after_cr and data.startswith(b"\n"):
            data = data[1:]
        after_cr = data.endswith(b"\r")
        text += data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data
        *blocks, text = text.split(b"\n\n")
        for block in blocks:
            lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
            if lines:
                yield time_s, b"\n".join(lines)
