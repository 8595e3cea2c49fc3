"""The quick routes, in Quart: models, health, version, the tokenizer, metrics; and every unknown path.

Nothing here streams or waits for the engine's steps. Errors of all kinds have OpenAI's shape.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from quart import Response, redirect, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException
from werkzeug.exceptions import MethodNotAllowed as WrongMethod
from werkzeug.exceptions import NotFound as NoRoute

from ..engine.core.errors import EngineDead, InvalidRequest, RequestError, TrioletError
from ..engine.prompt import Prompt, TextPrompt
from .anthropic.views import MessageRoutes
from .control import ControlRoutes
from .dialect import dialect_of
from .errors import MethodNotAllowed, NotFound, as_http
from .gate import CALLER
from .keys import Caller
from .live.route import BlockRoutes
from .openapi import document
from .page.reference import PATH as REFERENCE
from .page.reference import reference
from .page.views import PageRoutes, send_html
from .rendering import chat_prompt, request_prompt, text_of, tools_of
from .responses.views import ResponseRoutes
from .service import Service
from .tokens import Spelling
from .views import answer, answer_json, read_body
from .wire import ChatRequest, DetokenizeRequest, TokenizeRequest


def build_app(service: Service) -> QuartTrio:
    """The application for everything but the generating routes."""
    app = QuartTrio("triolet", static_folder=None)
    app.url_map.merge_slashes = False  # A path with more slashes is another path, and answered here.
    app.config.update(
        RESPONSE_TIMEOUT=None,  # The default cuts a response after 60 s, silently.
        BODY_TIMEOUT=None,  # The gate has read and bounded the body.
        MAX_CONTENT_LENGTH=None,
        PROPAGATE_EXCEPTIONS=False,
    )
    app.register_error_handler(Exception, _on_error)
    for path, method, handler in _routes(service):
        app.add_url_rule(path, endpoint=f"{method} {path}", view_func=handler, methods=[method])
    return app


Handler = Callable[..., Coroutine[Any, Any, Response]]


def _routes(service: Service) -> list[tuple[str, str, Handler]]:
    routes = _Routes(service)
    return [
        ("/health", "GET", routes.health),
        ("/version", "GET", routes.version),
        ("/metrics", "GET", routes.metrics),
        ("/openapi.json", "GET", routes.openapi),
        ("/docs", "GET", routes.docs),
        (REFERENCE, "GET", routes.reference),
        ("/v1/models", "GET", routes.models),
        ("/v1/models/<path:name>", "GET", routes.model),
        ("/v1/chat/completions/render", "POST", routes.render),
        ("/tokenize", "POST", routes.tokenize),
        ("/detokenize", "POST", routes.detokenize),
        ("/tokenizer_info", "GET", routes.tokenizer_info),
        ("/v1/requests/<request_id>/cancel", "POST", routes.cancel),
        *ResponseRoutes(service).routes(),
        *MessageRoutes(service).routes(),
        *ControlRoutes(service).routes(),
        *BlockRoutes(service).routes(),
        *PageRoutes(service).routes(),
    ]


class _Routes:
    """The handlers, over one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def health(self) -> Response:
        """200 while requests are answered, 503 with the reason otherwise."""
        reason = self._service.health
        if reason is None:
            return answer_json({"status": "ok"})
        closed = self._service.lifecycle.closed_because
        http = as_http(closed if self._service.engine.health is None and closed is not None else EngineDead(reason))
        return answer(http.body, http.status, http.headers)

    async def version(self) -> Response:
        return answer_json({"version": self._service.version})

    async def metrics(self) -> Response:
        body, content_type = self._service.metrics.render()
        return Response(body, content_type=content_type)

    async def openapi(self) -> Response:
        return answer(document(self._service.version, self._service.config.root_path), 200)

    async def docs(self) -> Any:
        """Where clients of other servers look for it. Relative: a proxy may stand in front."""
        return redirect("ui/docs", 308)

    async def reference(self) -> Response:
        return send_html(reference(document(self._service.version)))

    async def models(self) -> Response:
        return answer_json({"object": "list", "data": [self._card(name) for name in self._service.model_names]})

    async def model(self, name: str) -> Response:
        return answer_json(self._card(self._service.check_model(name)))

    def _card(self, name: str) -> dict[str, Any]:
        engine = self._service.engine
        return {
            "id": name,
            "object": "model",
            "created": engine.created,
            "owned_by": "triolet",
            "root": engine.model_name,
            "parent": None,
            "max_model_len": engine.max_model_len,
        }

    async def tokenize(self) -> Response:
        """vLLM's shape: a prompt or messages in, the tokens and their number out."""
        body = await read_body(TokenizeRequest)
        self._service.check_model(body.model)
        prompt: Prompt
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequest("Give either prompt or messages.", param="prompt")
        if body.messages is not None:
            prompt = chat_prompt(self._service, body, body.messages, use=tools_of(body))
        else:
            prompt = TextPrompt(text=body.prompt or "", add_special_tokens=body.add_special_tokens is not False)
        engine = self._service.engine
        tokens = await engine.tokenizer.encode(prompt)
        answer = {"count": len(tokens), "max_model_len": engine.max_model_len, "tokens": tokens}
        if body.return_token_strs:
            spelling = Spelling(engine.tokenizer)
            answer["token_strs"] = [spelling.text(token) for token in tokens]
        return answer_json(answer)

    async def tokenizer_info(self) -> Response:
        """What a client needs that tokenizes by way of this server (lm_eval's remote tokenizer): the special tokens."""
        engine = self._service.engine
        return answer_json({"model_max_length": engine.max_model_len, **engine.tokenizer.special_tokens})

    async def render(self) -> Response:
        """What a chat's model would read: the prompt and its tokens, after every check but those of sampling."""
        body = await read_body(ChatRequest)
        model = self._service.check_model(body.model)
        tokens = await self._service.engine.tokenizer.encode(request_prompt(self._service, body))
        text = await text_of(self._service, tokens, skip_special_tokens=False)
        limit = self._service.engine.max_model_len
        return answer_json({"model": model, "prompt": text, "token_ids": tokens, "max_model_len": limit})

    async def detokenize(self) -> Response:
        """At most as many tokens as the model takes: the work of a request is bounded."""
        body = await read_body(DetokenizeRequest)
        self._service.check_model(body.model)
        engine = self._service.engine
        if len(body.tokens) > engine.max_model_len:
            raise InvalidRequest(
                f"tokens may hold at most {engine.max_model_len} token ids, not {len(body.tokens)}.", param="tokens"
            )
        return answer_json({"prompt": await text_of(self._service, body.tokens)})

    async def cancel(self, request_id: str) -> Response:
        """End a client's own open request: its answer gets its text so far and the finish reason `abort`.

        With admin keys set, an admin ends anybody's.
        """
        caller: Caller = request.scope[CALLER]  # type: ignore[literal-required]
        num_ended = self._service.lifecycle.cancel(
            request_id,
            caller=caller.identity,
            any_caller=caller.is_admin and bool(self._service.config.admin_api_key),
        )
        if not num_ended:
            raise NotFound(f"There is no open request {request_id[:128]!r}.")
        return answer_json({"id": request_id, "object": "request.cancellation", "cancelled": num_ended})


async def _on_error(error: Exception) -> Response:
    dialect = dialect_of(request.path)
    http = dialect.http(_ours(error))
    return answer(dialect.body(http), http.status, http.headers)


def _ours(error: Exception) -> Exception:
    """Quart's exceptions as our own; anything else as it is."""
    if isinstance(error, TrioletError) or not isinstance(error, HTTPException):
        return error
    if isinstance(error, WrongMethod):
        allow = ", ".join(sorted(error.valid_methods or ()))
        return MethodNotAllowed(f"{request.path[:256]} answers {allow}, not {request.method[:32]}.", allow=allow)
    if isinstance(error, NoRoute):
        return NotFound(f"There is no route {request.path[:256]}.")
    ours: RequestError = InvalidRequest(error.description or error.name)
    return ours
