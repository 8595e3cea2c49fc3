"""A server under load, and how it is asked: which model it serves, whether it takes token ids, what a body looks like.

Imports trio through the client.
"""

from typing import Any

import attrs
import msgspec

from ...engine.core.errors import StartError
from .client import Address, Client, Exchange, open_client, resolve
from .measure import error_text, read_outcome
from .prompts import Ask, Content, Endpoint, Message
from .response import MalformedResponse, Response, read_response

PROBE_TIMEOUT_S = 120.0
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


class ServerUnusable(StartError):
    """There is nothing to measure: the server isn't there, or refuses a simple request."""


@attrs.frozen(kw_only=True)
class Target:
    """A server, probed."""

    name: str
    """What a report calls it."""
    address: Address
    model: str
    endpoint: Endpoint = "completions"
    takes_token_ids: bool = True
    extra: dict[str, Any] = attrs.field(factory=dict)
    """Fields that every body has, over ours."""

    def request(self, ask: Ask, history: tuple[Ask | str, ...] = ()) -> bytes:
        """A streamed request at temperature 0 that runs to its full length, as bytes. `history`: asks and answers."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": ask.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.endpoint == "chat":
            body["messages"] = [message for part in (*history, ask) for message in _messages(part)]
        else:
            body["prompt"] = _prompt([part if isinstance(part, str) else part.content for part in (*history, ask)])
        return self.address.request("POST", PATHS[self.endpoint], msgspec.json.encode(body | self.extra))

    async def send(self, client: Client, ask: Ask, history: tuple[Ask | str, ...] = (), **options: Any) -> Exchange:
        """Ask; the options are those of `Client.exchange`."""
        return await client.exchange(self.address, self.request(ask, history), **options)


def _messages(part: Ask | str) -> list[Message]:
    if isinstance(part, str):
        return [{"role": "assistant", "content": part}]
    if isinstance(part.content, str):
        return [{"role": "user", "content": part.content}]
    if any(isinstance(entry, int) for entry in part.content):
        raise AssertionError("a chat takes no token ids")
    return list(part.content)  # type: ignore[arg-type]


def _prompt(parts: list[Content]) -> str | list[int]:
    """The texts of a conversation, one after the other; or token ids, which have no history."""
    if all(isinstance(part, str) for part in parts):
        return "\n".join(parts)  # type: ignore[arg-type]
    content = parts[-1]
    if not all(isinstance(entry, int) for entry in content):
        raise ServerUnusable("The file has messages: use --endpoint chat.")
    return list(content)  # type: ignore[arg-type]


async def probe(
    url: str,
    *,
    name: str,
    model: str | None = None,
    api_key: str | None = None,
    endpoint: Endpoint = "completions",
    extra: dict[str, Any] | None = None,
) -> Target:
    """Ask the server for its model and for a token or two, which also warms it up.

    Raises ConfigurationError for a malformed URL, ServerUnusable with the server's own words.
    """
    address = await resolve(url, api_key=api_key)
    target = Target(
        name=name,
        address=address,
        model=model or await _first_model(address),
        endpoint=endpoint,
        takes_token_ids=endpoint == "completions",
        extra=extra or {},
    )
    async with open_client() as client:
        if target.takes_token_ids:
            ask = Ask(content=(1001, 1002, 1003), max_tokens=2)
            if read_outcome(await target.send(client, ask, timeout_s=PROBE_TIMEOUT_S)).error is None:
                return target
            target = attrs.evolve(target, takes_token_ids=False)
        outcome = read_outcome(
            await target.send(client, Ask(content="Hello there", max_tokens=2), timeout_s=PROBE_TIMEOUT_S)
        )
    if outcome.error is not None:
        raise ServerUnusable(f"{address.url} cannot be measured: {outcome.error}.")
    return target


async def get(address: Address, path: str, *, timeout_s: float = PROBE_TIMEOUT_S) -> Response:
    """GET a path. Raises ServerUnusable when there is no answer."""
    async with open_client() as client:
        result = await client.exchange(address, address.request("GET", path), timeout_s=timeout_s)
    if result.error is not None:
        raise ServerUnusable(f"{address.url} cannot be measured: {result.error}.")
    try:
        return read_response(result.arrivals)
    except MalformedResponse as error:
        raise ServerUnusable(f"{address.url} cannot be measured: {error}.") from None


async def _first_model(address: Address) -> str:
    response = await get(address, "/v1/models")
    if response.status != 200:
        raise ServerUnusable(
            f"{address.url} does not say which models it has (status {response.status}: {error_text(response.body)}); "
            "name one with --model."
        )
    try:
        return str(msgspec.json.decode(response.body)["data"][0]["id"])
    except (msgspec.DecodeError, KeyError, IndexError, TypeError):
        raise ServerUnusable(f"{address.url} lists no model; name one with --model.") from None
