"""What the Quart views share: a request's body as a type, and a value as a JSON answer."""

from typing import Any, TypeVar

import msgspec
from quart import Response, request

from .body import decode

T = TypeVar("T")


async def read_body(type_: type[T]) -> T:
    """The current request's. Raises InvalidRequest."""
    data = await request.get_data()
    return decode(data if isinstance(data, bytes) else data.encode(), type_)


def answer_json(value: Any) -> Response:
    return answer(msgspec.json.encode(value), 200)


def answer(body: bytes, status: int, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Response:
    """JSON, ready made."""
    response = Response(body, status=status, content_type="application/json")
    for name, value in headers:
        response.headers[name.decode()] = value.decode()
    return response
