"""What can be asked of a response by its id, in Quart. Another key's response is a 404, as is one that never was."""

from typing import Any

import msgspec
from quart import Response, request

from ...engine.core.errors import InvalidRequest
from ..dialect import RESPONSES
from ..gate import CALLER
from ..rendering import request_prompt
from ..service import Service
from ..views import answer, answer_json, read_body
from .job import chat_of
from .requests import ResponsesRequest

PAGE = 20
PAGE_MAX = 100


class ResponseRoutes:
    """The handlers."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._responses = service.responses

    def routes(self) -> list[tuple[str, str, Any]]:
        path = "/v1/responses/<response_id>"
        return [
            (path, "GET", self.read),
            (path, "DELETE", self.delete),
            (f"{path}/cancel", "POST", self.cancel),
            (f"{path}/input_items", "GET", self.input_items),
            ("/v1/responses/input_tokens", "POST", self.input_tokens),
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

    async def input_tokens(self) -> Response:
        """How many tokens the model would read for such a request; nothing is generated."""
        body = await read_body(ResponsesRequest)
        self._service.check_model(body.model)
        body.refuse_unserved()
        chat = chat_of(self._service, body, _caller())
        with RESPONSES.renaming():
            tokens = await self._service.engine.tokenizer.encode(request_prompt(self._service, chat))
        return answer_json({"object": "response.input_tokens", "input_tokens": len(tokens)})

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
