"""A client of OpenAI's protocol: whole answers, and streams as their events. Imports trio by way of the exchange.

What a server says is not trusted: it may be anybody's. Every answer and every event has a bound, and what is of another
shape is an error with a message.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import attrs
import msgspec

from ...engine.core.errors import RequestError
from .exchange import Broken, Exchange, Place, exchange

ANSWER_BYTES_MAX = 256 * 1024 * 1024
EVENT_BYTES_MAX = 16 * 1024 * 1024
MESSAGE_CHARS_MAX = 2000
"""Most of a server's words that an error repeats."""

_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")  # one at the end of what has come may be the half of another one


class Refused(RequestError):
    """The server's own words: it refused the request, or broke its answer off."""


@attrs.frozen(kw_only=True)
class Answer:
    """A whole response."""

    status: int
    body: bytes
    request_id: str | None
    retry_after_s: float | None
    """What the server says to wait before another try."""


@attrs.frozen
class Client:
    """Asks one server, as often at a time as it is called. What it raises names the server."""

    place: Place

    async def models(self) -> list[str]:
        """The names of the models that it serves. Raises Refused, Unreachable, Broken."""
        async with exchange(self.place, "GET", "/v1/models") as response:
            body = await response.read_all(ANSWER_BYTES_MAX)
        if response.status != 200:
            raise Refused(message_of(body, response.status))
        try:
            return [str(card["id"]) for card in msgspec.json.decode(body)["data"]]
        except (msgspec.DecodeError, KeyError, TypeError):
            raise Refused(f"{self.place.name} lists no models; is it a server of OpenAI's protocol?") from None

    async def post(self, route: str, body: bytes) -> Answer:
        """A whole answer, whatever its status. Raises Unreachable, Broken."""
        async with exchange(self.place, "POST", route, body) as response:
            whole = await response.read_all(ANSWER_BYTES_MAX)
        request_id = response.headers.get(b"x-request-id")
        return Answer(
            status=response.status,
            body=whole,
            request_id=None if request_id is None else request_id.decode("latin-1"),
            retry_after_s=_seconds(response.headers.get(b"retry-after", b"")),
        )

    @asynccontextmanager
    async def stream(self, route: str, body: dict[str, Any]) -> AsyncIterator["Events"]:
        """A streamed answer. Raises Refused, Unreachable, Broken; so does going through its events.

        Leaving the scope closes the connection, so that the server drops the rest.
        """
        async with exchange(self.place, "POST", route, msgspec.json.encode(body | {"stream": True})) as response:
            if response.status != 200:
                raise Refused(message_of(await response.read_all(ANSWER_BYTES_MAX), response.status))
            yield Events(response, self.place.name)


class Events:
    """The JSON objects of a stream of server-sent events, up to its [DONE]. Broken where it has none."""

    def __init__(self, response: Exchange, name: str) -> None:
        self._response = response
        self._name = name
        self._rest = b""
        self._lines: list[bytes] = []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> dict[str, Any]:
        data: list[bytes] = []
        while (line := await self._line()) is not None:
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                text = b"\n".join(data)
                if text == b"[DONE]":
                    raise StopAsyncIteration
                return self._event(text)
        raise Broken(f"{self._name} ended the answer before its end.")

    async def _line(self) -> bytes | None:
        """The next line without its end; None when no more comes."""
        while not self._lines:
            data = await self._response.read()
            if not data:
                last, self._rest = self._rest, b""
                return last[:-1] if last.endswith(b"\r") else None
            self._rest += data
            if len(self._rest) > EVENT_BYTES_MAX:
                raise Broken(f"{self._name} sent an event of more than {EVENT_BYTES_MAX} bytes.")
            *self._lines, self._rest = _LINE_END.split(self._rest)
            self._lines.reverse()
        return self._lines.pop()

    def _event(self, text: bytes) -> dict[str, Any]:
        try:
            event = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError:
            raise Refused(f"{self._name} sent an event that is no JSON object.") from None
        if event.get("error") is not None:
            raise Refused(message_of(text, 200))
        return event


def _seconds(text: bytes) -> float | None:
    """A Retry-After that is a number; the other form is a date, which nobody sends."""
    return float(text) if text.isdigit() and len(text) < 7 else None


def message_of(body: bytes, status: int) -> str:
    """What an error's body says, or its status where it says nothing."""
    try:
        error = msgspec.json.decode(body)
        error = error.get("error", error)
        message = error if isinstance(error, str) else error.get("message") or error.get("detail")
    except (msgspec.DecodeError, AttributeError):
        message = None
    if isinstance(message, str) and message:
        return message[:MESSAGE_CHARS_MAX]
    return f"The server answered with status {status}."
