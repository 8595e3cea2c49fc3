"""The two kinds of line: a request of the input, and a row of the output; OpenAI's batch format.

    in    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {…}}
    out   {"id": "batch_req_…", "custom_id": "a", "response": {"status_code", "request_id", "body"}, "error": null}

A row has a response, whatever its status, or an error: one of a line that is no request names its number. The body is
carried as it stands: the server reads it, and answers what it would have answered over HTTP. Pure: msgspec.
"""

import uuid
from typing import Any

import attrs
import msgspec

ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
INVALID_LINE = "invalid_line"
CONNECTION_FAILED = "connection_failed"


@attrs.frozen(kw_only=True)
class Request:
    """A line that can be asked."""

    number: int
    """Of the line, from 1."""
    custom_id: str
    url: str
    body: bytes


@attrs.frozen(kw_only=True)
class BadLine:
    """A line that cannot."""

    number: int
    custom_id: str | None
    """Where it has one."""
    message: str


class RowResponse(msgspec.Struct, kw_only=True):
    """What the server answered."""

    status_code: int
    request_id: str | None
    body: msgspec.Raw


class RowError(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Why there is no answer."""

    code: str
    message: str
    line: int | None = None


class Row(msgspec.Struct, kw_only=True):
    """A line of the output."""

    id: str
    custom_id: str | None
    response: RowResponse | None
    error: RowError | None

    @property
    def failed(self) -> bool:
        return self.response is None or self.response.status_code != 200

    def encode(self) -> bytes:
        """With the end of the line."""
        return msgspec.json.encode(self) + b"\n"


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


def parse_line(number: int, line: bytes) -> Request | BadLine:
    """A line of the input; never raises."""
    custom_id: str | None = None

    def bad(message: str) -> BadLine:
        return BadLine(number=number, custom_id=custom_id, message=f"Line {number}: {message}")

    try:
        found = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError as error:
        return bad(f"this is no JSON object: {error}.")
    custom_id = _text(found.get("custom_id"))
    if not custom_id:
        return bad("custom_id must be a text that is not empty.")
    if _text(found.get("method")) != "POST":
        return bad("method must be POST.")
    url = _text(found.get("url"))
    if url not in ROUTES:
        return bad(f"url must be one of {', '.join(ROUTES)}.")
    try:
        body = msgspec.json.decode(found.get("body", b""), type=dict[str, Any])
    except msgspec.DecodeError:
        return bad("body must be a JSON object.")
    if body.get("stream"):
        return bad("body.stream must not be true: a row holds a whole answer.")
    return Request(number=number, custom_id=custom_id, url=url, body=bytes(found["body"]))


def _text(value: msgspec.Raw | None) -> str | None:
    try:
        return None if value is None else msgspec.json.decode(value, type=str)
    except msgspec.DecodeError:
        return None


def answered(request: Request, *, status: int, request_id: str | None, body: bytes) -> Row:
    """A row for an answer. A body that is no JSON, as a proxy in between may send it, becomes a text."""
    try:
        msgspec.json.decode(body)
    except msgspec.DecodeError:
        body = msgspec.json.encode(body.decode(errors="replace"))
    # Outside its texts JSON takes line ends for spaces; inside them there are none.
    body = body.replace(b"\r", b" ").replace(b"\n", b" ")
    response = RowResponse(status_code=status, request_id=request_id, body=msgspec.Raw(body))
    return Row(id=_new_id(), custom_id=request.custom_id, response=response, error=None)


def unanswered(request: Request, message: str) -> Row:
    """A row for a request whose connections failed."""
    error = RowError(code=CONNECTION_FAILED, message=message)
    return Row(id=_new_id(), custom_id=request.custom_id, response=None, error=error)


def refused(line: BadLine) -> Row:
    """A row for a line that cannot be asked."""
    error = RowError(code=INVALID_LINE, message=line.message, line=line.number)
    return Row(id=_new_id(), custom_id=line.custom_id, response=None, error=error)


def num_tokens(row: Row) -> int:
    """What the answer says that it made; 0 where it says nothing."""
    try:
        answer = msgspec.json.decode(row.response.body, type=_Answer) if row.response is not None else None
    except msgspec.DecodeError:
        answer = None
    return answer.usage.completion_tokens if answer is not None and answer.usage is not None else 0


def _new_id() -> str:
    return f"batch_req_{uuid.uuid4().hex}"
