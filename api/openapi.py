"""GET /openapi.json: what can be asked, made from the types that requests are decoded with.

`OPERATIONS` is the list of routes; a test compares it with what the server has, so that neither forgets one.
"""

from functools import cache
from typing import Any

import attrs
import msgspec

from .anthropic.requests import MessagesRequest, TokenCountRequest
from .dialect import MESSAGES, MessagesErrorBody, dialect_of
from .embeddings import EmbeddingRequest
from .errors import ErrorBody
from .live.wire import LiveBlockList, LiveEvent
from .page.reference import PATH as REFERENCE
from .page.views import PassRequest
from .responses.requests import ResponsesRequest
from .settings import SettingsChange
from .wire import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest


@attrs.frozen(kw_only=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    summary: str
    body: type | None = None
    errors: tuple[int, ...] = ()
    """Statuses beside those that every route may answer."""
    answers: str = "application/json"
    gives: type | None = None
    """What the answer, or each event of it, holds."""
    is_open: bool = False
    query: tuple[str, ...] = ()
    """Names of optional parameters."""


GENERATES = (404, 409, 500, 503)

OPERATIONS = (
    Operation(
        method="post",
        path="/v1/chat/completions",
        summary="Answer a conversation; with `stream` as server-sent events.",
        body=ChatRequest,
        errors=GENERATES,
    ),
    Operation(
        method="post",
        path="/v1/chat/completions/render",
        summary="The prompt that a conversation becomes, and its tokens; nothing is generated.",
        body=ChatRequest,
        errors=(404,),
    ),
    Operation(
        method="post",
        path="/v1/completions",
        summary="Go on with a prompt, or with each of several; with `stream` as server-sent events.",
        body=CompletionRequest,
        errors=GENERATES,
    ),
    Operation(
        method="post",
        path="/v1/embeddings",
        summary="A vector for a text, or for each of several.",
        body=EmbeddingRequest,
        errors=(404, 500, 503),
    ),
    Operation(
        method="post",
        path="/v1/responses",
        summary="Answer in items, perhaps continuing a stored response; as events, whole, or in the background.",
        body=ResponsesRequest,
        errors=GENERATES,
    ),
    Operation(
        method="post",
        path="/v1/responses/input_tokens",
        summary="How many tokens such a request has.",
        body=ResponsesRequest,
        errors=(404,),
    ),
    Operation(method="get", path="/v1/responses/{response_id}", summary="A response as it is now.", errors=(404,)),
    Operation(method="delete", path="/v1/responses/{response_id}", summary="Forget a response.", errors=(404,)),
    Operation(
        method="post",
        path="/v1/responses/{response_id}/cancel",
        summary="End a response that is not finished.",
        errors=(404,),
    ),
    Operation(
        method="get",
        path="/v1/responses/{response_id}/input_items",
        summary="What a response's request said, page by page.",
        errors=(404,),
        query=("limit", "order", "after"),
    ),
    Operation(
        method="post",
        path="/v1/messages",
        summary="Answer a conversation in Anthropic's words; with `stream` as server-sent events.",
        body=MessagesRequest,
        errors=GENERATES,
    ),
    Operation(
        method="post",
        path="/v1/messages/count_tokens",
        summary="How many tokens such a conversation has.",
        body=TokenCountRequest,
        errors=(404,),
    ),
    Operation(
        method="post",
        path="/v1/requests/{request_id}/cancel",
        summary="End an open request; it is answered with its text so far.",
        errors=(404,),
    ),
    Operation(
        method="get",
        path="/v1/requests",
        summary="Open requests and the last that ended, newest first; in one state, or all.",
        query=("state",),
    ),
    Operation(
        method="get", path="/v1/requests/{request_id}", summary="What became of a request, and when.", errors=(404,)
    ),
    Operation(
        method="get",
        path="/v1/live",
        summary="The engine as it is now and what changes, as server-sent events; after `events` of them it ends.",
        query=("events",),
        answers="text/event-stream",
        gives=LiveEvent,
        errors=(503,),
    ),
    Operation(
        method="get",
        path="/v1/live/blocks/{first}",
        summary="What is in `count` blocks of the KV cache.",
        query=("count",),
        gives=LiveBlockList,
        errors=(404,),
    ),
    Operation(method="get", path="/admin/settings", summary="The settings that can change while the server runs."),
    Operation(
        method="patch",
        path="/admin/settings",
        summary="Change settings, at the next step boundary.",
        body=SettingsChange,
        errors=(503,),
    ),
    Operation(method="post", path="/admin/pause", summary="Compute nothing until resumed.", errors=(503,)),
    Operation(method="post", path="/admin/resume", summary="Compute again.", errors=(503,)),
    Operation(
        method="post",
        path="/admin/reset_prefix_cache",
        summary="Forget all cached prefixes; refused while requests hold blocks.",
        errors=(409, 503),
    ),
    Operation(method="get", path="/v1/models", summary="The models that are served."),
    Operation(method="get", path="/v1/models/{name}", summary="One model.", errors=(404,)),
    Operation(
        method="post", path="/tokenize", summary="A prompt's or messages' tokens.", body=TokenizeRequest, errors=(404,)
    ),
    Operation(method="post", path="/detokenize", summary="The text of tokens.", body=DetokenizeRequest, errors=(404,)),
    Operation(method="get", path="/tokenizer_info", summary="The tokenizer's special tokens."),
    Operation(method="get", path="/health", summary="Whether requests are answered.", errors=(503,), is_open=True),
    Operation(method="get", path="/version", summary="The server's version."),
    Operation(method="get", path="/metrics", summary="Prometheus metrics.", answers="text/plain"),
    Operation(method="get", path="/ui", summary="The page: a chat, and the engine from inside.", answers="text/html"),
    Operation(method="get", path="/ui/", summary="The same, by another name.", answers="text/html"),
    Operation(method="get", path="/ui/{name}", summary="A file of the page.", answers="text/javascript", errors=(404,)),
    Operation(
        method="post",
        path="/ui/pass",
        summary="With a key: a cookie that opens the page's files and no more.",
        body=PassRequest,
    ),
    Operation(method="get", path="/openapi.json", summary="This document."),
    Operation(method="get", path="/docs", summary="The way to `/ui/docs`.", answers="text/html"),
    Operation(method="get", path=REFERENCE, summary="This document as a page.", answers="text/html"),
)

EVERYWHERE = (400, 401, 403, 408, 413, 431)


@cache
def document(version: str, root_path: str = "") -> bytes:
    """The document, OpenAPI 3.1. `root_path`: where a proxy puts the server."""
    given = [type_ for operation in OPERATIONS for type_ in (operation.body, operation.gives)]
    types = [type_ for type_ in given if type_ is not None]
    types += [ErrorBody, MessagesErrorBody]
    _, schemas = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    key = {"type": "http", "scheme": "bearer", "description": "A key, where the server has been given one."}
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Triolet", "version": version, "license": {"name": "Apache-2.0"}},
            **({"servers": [{"url": root_path}]} if root_path else {}),
            "paths": paths,
            "components": {"schemas": schemas, "securitySchemes": {"key": key}},
            "security": [{"key": []}, {}],
        }
    )


def _described(operation: Operation) -> dict[str, Any]:
    shape = MessagesErrorBody if dialect_of(operation.path) is MESSAGES else ErrorBody
    error = {"application/json": {"schema": {"$ref": f"#/components/schemas/{shape.__name__}"}}}
    answers: dict[str, Any] = {operation.answers: {}}
    if operation.gives is not None:
        schema = {"$ref": f"#/components/schemas/{operation.gives.__name__}"}
        answers[operation.answers] = {"schema": schema}
    if operation.errors == GENERATES:
        answers["text/event-stream"] = {}
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": answers}}
    for status in sorted({*EVERYWHERE, *operation.errors, *(() if operation.body is None else (415,))}):
        responses[str(status)] = {"description": "An error.", "content": error}
    described: dict[str, Any] = {"summary": operation.summary, "responses": responses}
    names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    if names:
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in names
        ]
    if operation.query:
        described["parameters"] = described.get("parameters", []) + [
            {"name": name, "in": "query", "required": False, "schema": {"type": "string"}} for name in operation.query
        ]
    if operation.body is not None:
        schema = {"$ref": f"#/components/schemas/{operation.body.__name__}"}
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if operation.is_open:
        described["security"] = []
    return described
