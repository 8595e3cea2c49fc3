"""The same requests in the words of the other chat surfaces: whatever brings a chat into a state brings them there."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from .clients import Client
from .states import CHAT


@attrs.frozen
class Surface:
    """A route, how a chat is asked for there, and how its first token shows in a stream."""

    path: str
    worded: Callable[[dict[str, Any]], dict[str, Any]]
    first_token: bytes


def _response(chat: dict[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in chat.items() if name not in ("messages", "max_tokens")}
    return {"input": chat["messages"], "max_output_tokens": chat["max_tokens"], **rest}


def _message(chat: dict[str, Any]) -> dict[str, Any]:
    return chat


SURFACES = {
    "responses": Surface("/v1/responses", _response, b'"delta":"a'),
    "messages": Surface("/v1/messages", _message, b'"text_delta","text":"a'),
}


class As:
    """A client that says what is a chat in a surface's words, and is the client in everything else."""

    def __init__(self, client: Client, surface: Surface) -> None:
        self._client = client
        self._surface = surface

    async def ask(self, path: str, body: Mapping[str, Any] | None = None, **headers: str) -> None:
        if path == CHAT and body is not None:
            path, body = self._surface.path, self._surface.worded(dict(body))
        await self._client.ask(path, body, **headers)

    async def read_until(self, mark: bytes) -> bytes:
        return await self._client.read_until(self._surface.first_token if mark == b'"content":"a' else mark)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def last_event(text: bytes) -> dict[str, Any]:
    """Of a stream whose events have names."""
    blocks = [block for block in text.decode().split("\n\n") if block and not block.startswith(":")]
    decoded: dict[str, Any] = json.loads(blocks[-1].split("\n")[1].removeprefix("data: "))
    return decoded
