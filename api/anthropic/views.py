"""POST /v1/messages/count_tokens, in Quart."""

from typing import Any

from quart import Response

from ..dialect import MESSAGES
from ..rendering import request_prompt
from ..service import Service
from ..views import answer_json, read_body
from .requests import TokenCountRequest


class MessageRoutes:
    """The handlers."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[tuple[str, str, Any]]:
        return [("/v1/messages/count_tokens", "POST", self.count)]

    async def count(self) -> Response:
        """How many tokens the model would read; nothing is generated."""
        body = await read_body(TokenCountRequest)
        self._service.check_model(body.model)
        body.refuse_unserved()
        chat = body.to_chat()
        with MESSAGES.renaming():
            prompt = request_prompt(self._service, chat)
            tokens = await self._service.engine.tokenizer.encode(prompt)
        return answer_json({"input_tokens": len(tokens)})
