"""GET /v1/live, raw ASGI as all that streams is; and the views of the blocks that it draws.

watcher's nursery            cancelled when the client is gone: then nothing of it is left
├── disconnect               sits in receive()
├── keep-alive               comments while nothing changes
└── events                   one at a time; the connection drops a client that stops reading
"""

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import trio
from quart import Response, request

from ...engine.core.errors import InvalidRequest, TrioletError
from ..body import Receive
from ..errors import NotFound, as_http
from ..reply import Reply, Send
from ..service import Service
from ..views import answer_json
from .hub import Hub
from .wire import LiveBlock, LiveBlockList

if TYPE_CHECKING:
    from ...engine.inside import BlockTold

PATH = "/v1/live"
EVENTS_MAX = 1_000_000


class LiveRoute:
    """Answers GET /v1/live. `?events=1` ends it after so many events."""

    def __init__(self, hub: Hub, *, ping_interval: float) -> None:
        self._hub = hub
        self._ping_interval = ping_interval

    async def __call__(self, scope: dict[str, Any], body: bytes, receive: Receive, send: Send) -> None:
        reply = Reply(send)
        try:
            most = _number(scope.get("query_string", b"").decode("latin-1"))
            with self._hub.watch() as watcher:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_cancel_when_gone, receive, nursery.cancel_scope)
                    await reply.start_stream()
                    nursery.start_soon(reply.keep_alive, self._ping_interval)
                    while most > 0 and (event := await watcher.next()) is not None:
                        most -= 1
                        await reply.event(event)
                    await reply.end()
                    nursery.cancel_scope.cancel()
        except TrioletError as error:
            told = as_http(error)
            await reply.json(told.status, told.body, told.headers)


def _number(query: str) -> int:
    text = parse_qs(query).get("events", [str(EVENTS_MAX)])[0]
    if not (text.isascii() and text.isdigit() and len(text) < 8 and 1 <= int(text) <= EVENTS_MAX):
        raise InvalidRequest(f"events must be a number from 1 to {EVENTS_MAX}, not {text[:64]!r}.", param="events")
    return int(text)


async def _cancel_when_gone(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


class BlockRoutes:
    """What is in the blocks of the map."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[tuple[str, str, Any]]:
        return [("/v1/live/blocks/<int:first>", "GET", self.blocks)]

    async def blocks(self, first: int) -> Response:
        """`?count=` blocks from `first` on, 64 at most."""
        text = request.args.get("count", "1")
        if not (text.isascii() and text.isdigit() and len(text) < 8 and int(text)):
            raise InvalidRequest(f"count must be a number above 0, not {text[:64]!r}.", param="count")
        inside = self._service.engine.inside
        if first >= inside.num_blocks:
            raise NotFound(f"There is no block {first}: the pool has {inside.num_blocks}.")
        return answer_json(LiveBlockList(object="list", data=tuple(map(self._told, inside.blocks(first, int(text))))))

    def _told(self, told: "BlockTold") -> LiveBlock:
        shows = self._service.config.shows_prompts
        decode = self._service.engine.tokenizer.decode
        return LiveBlock(
            block=told.seen.block,
            state=told.seen.state,
            refcount=told.seen.refcount,
            pinned=told.seen.is_pinned,
            hash=None if told.seen.content_hash is None else told.seen.content_hash.hex(),
            owners=told.owners,
            tokens=len(told.token_ids),
            token_ids=told.token_ids if shows else None,
            text=decode(told.token_ids, skip_special_tokens=False) if shows else None,
        )
