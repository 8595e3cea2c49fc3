"""What can be asked of a response by its id, in Quart. Another key's response is a 404, as is one that never was."""

from typing import Any

import msgspec
from quart import Response, request

from ...engine.core.errors import InvalidRequest
from ..gate import CALLER
from ..service import Service
from ..views import answer, answer_json

PAGE = 20
PAGE_MAX = 100


class ResponseRoutes:
    """The handlers."""

    def __init__(self, service: Service) -> None:
        self._responses = service.responses

    def routes(self) -> list[tuple[str, str, Any]]:
        path = "/v1/responses/<response_id>"
        return [
            (path, "GET", self.read),
            (path, "DELETE", self.delete),
            (f"{path}/cancel", "POST", self.cancel),
            (f"{path}/input_items", "GET", self.input_items),
        ]

    async def read(self, response_id: str) -> Response:
        """As it is now, whether it runs or has ended."""
        if request.args.get("stream", "false").lower() == "true":
            raise InvalidRequest("stream is not supported here: a response is read as a whole.", param="stream")
        return answer(self._responses.body(_caller(), response_id), 200)

    async def cancel(self, response_id: str) -> Response:
        """End one that runs, in any stage."""
        return answer(await self._responses.cancel(_caller(), response_id), 200)

    async def delete(self, response_id: str) -> Response:
        self._responses.delete(_caller(), response_id)
        return answer_json({"id": response_id, "object": "response", "deleted": True})

    async def input_items(self, response_id: str) -> Response:
        """What the request itself said, page by page, newest first by default."""
        items = msgspec.json.decode(self._responses.input_items(_caller(), response_id), type=list[dict[str, Any]])
        order = request.args.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidRequest(f"order must be asc or desc, not {order[:64]!r}.", param="order")
        if order == "desc":
            items.reverse()
        first = _place_after(items, request.args.get("after"))
        page = items[first : first + _limit(request.args.get("limit"))]
        return answer_json(
            {
                "object": "list",
                "data": page,
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
                "has_more": first + len(page) < len(items),
            }
        )


def _caller() -> str:
    identity: str = request.scope[CALLER].identity  # type: ignore[literal-required]
    return identity


def _limit(text: str | None) -> int:
    if text is None:
        return PAGE
    if not text.isdecimal() or not text.isascii() or not 1 <= int(text[:9]) <= PAGE_MAX:
        raise InvalidRequest(f"limit must be an integer from 1 to {PAGE_MAX}, not {text[:64]!r}.", param="limit")
    return int(text)


def _place_after(items: list[dict[str, Any]], item_id: str | None) -> int:
    if item_id is None:
        return 0
    for place, item in enumerate(items):
        if item["id"] == item_id:
            return place + 1
    raise InvalidRequest(f"after must be the id of an item of this response, not {item_id[:64]!r}.", param="after")
