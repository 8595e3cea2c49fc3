"""In which words a protocol tells what went wrong. OpenAI's are the house's own; Anthropic's are others.

Pure. A request of another protocol becomes a chat, so an error may name a chat's field: `Dialect.renamed` names the
client's instead, by `Dialect.names`.
"""

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar

import attrs
import msgspec

from ..engine.core.errors import TrioletError
from .errors import ErrorObject, HttpError, ThreadUnsupported, as_http
from .reply import ID_HEADERS, PING

E = TypeVar("E", bound=BaseException)

Names = tuple[tuple[str, str], ...]
"""Pairs: a regular expression for the beginning of a field's path, and what stands there for the client."""


def _openai_body(error: HttpError) -> bytes:
    return error.body


@attrs.frozen(kw_only=True)
class Dialect:
    """A protocol's words."""

    id_headers: tuple[bytes, ...] = ID_HEADERS
    """Headers of an answer that say what the request is called."""

    names: Names = ()
    body: Callable[[HttpError], bytes] = _openai_body
    """The body of an answer that is an error."""
    ping: bytes = PING
    """What keeps a quiet stream open."""

    def http(self, error: BaseException) -> HttpError:
        """What to tell the client."""
        return as_http(error)

    @contextmanager
    def renaming(self) -> Iterator[None]:
        """Around what knows the chat's names: an error leaves with the client's."""
        try:
            yield
        except TrioletError as error:
            raise self.renamed(error) from None

    def renamed(self, error: E) -> E:
        """An error that may name a chat's field, with the client's name for it."""
        if not isinstance(error, TrioletError) or error.param is None:
            return error
        for pattern, name in self.names:
            param, count = re.subn(rf"\A{pattern}(?![a-z_])", name, error.param)
            if count:
                renamed = copy.copy(error)
                assert isinstance(renamed, TrioletError)
                renamed.message = error.message.replace(error.param, param, 1)
                renamed.param = param
                return renamed
        return error


OPENAI = Dialect()

RESPONSES = Dialect(
    names=(
        (r"messages(\[\d+\])?[a-z_.]*", "input"),
        (r"max_completion_tokens", "max_output_tokens"),
        (r"max_tokens", "max_output_tokens"),
        (r"response_format\.json_schema", "text.format"),
        (r"response_format", "text.format"),
        (r"tools\[(\d+)\]\.function", r"tools[\1]"),
        (r"tool_choice\.function", "tool_choice"),
        (r"reasoning_effort", "reasoning.effort"),
    )
)

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


class MessagesErrorObject(ErrorObject, frozen=True, omit_defaults=True):
    """With what Anthropic's clients look up, where they do."""

    details: dict[str, str] | None = None


class MessagesErrorBody(msgspec.Struct, frozen=True):
    """Anthropic's shape of an error; the `param` and the `code` within are ours."""

    type: Literal["error"]
    error: MessagesErrorObject


def anthropic_error(error: HttpError) -> bytes:
    """The body, and the data of the event that ends a broken stream."""
    given = msgspec.structs.asdict(error.error)
    given["type"] = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error")
    if error.error.code == ThreadUnsupported.code:
        given["details"] = {"error_code": ThreadUnsupported.code}
    return msgspec.json.encode(MessagesErrorBody("error", MessagesErrorObject(**given)))


MESSAGES = Dialect(
    names=(
        (r"stop", "stop_sequences"),
        (r"max_completion_tokens", "max_tokens"),
        (r"response_format\.json_schema", "output_config.format"),
        (r"tools\[(\d+)\]\.function\.parameters", r"tools[\1].input_schema"),
        (r"tools\[(\d+)\]\.function", r"tools[\1]"),
        (r"tool_choice\.function", "tool_choice"),
        (r"reasoning_effort", "output_config.effort"),
    ),
    body=anthropic_error,
    id_headers=(b"x-request-id", b"request-id"),
    ping=b'event: ping\ndata: {"type":"ping"}\n\n',
)

_MESSAGES_PATH = "/v1/messages"


def dialect_of(path: str) -> Dialect:
    """The words in which a request for that path is refused before its body is looked at."""
    return MESSAGES if path == _MESSAGES_PATH or path.startswith(_MESSAGES_PATH + "/") else OPENAI
