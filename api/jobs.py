"""From a request's body to a job for the engine: the prompts, the parameters, and the format of the answer."""

import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import attrs

from ..engine.core.errors import InvalidRequest
from ..engine.core.params import SamplingParams
from ..engine.core.pooling import Pooling
from ..engine.prompt import Cut, InfillPrompt, TextPrompt, TokenPrompt
from .answers import Format, Shape
from .body import decode
from .chats import ChatFormat
from .completions import CompletionFormat, Echo
from .conversation import budget_of, conversation_of
from .embeddings import AT_ONCE, EmbeddingFormat, EmbeddingRequest
from .parsing import Parsing
from .rendering import cut_of
from .service import Service
from .terms import Envelope, Terms, read_terms
from .tokens import Spelling
from .wire import MAX_CHOICES, MAX_PROMPTS, ChatRequest, CompletionRequest

if TYPE_CHECKING:
    from ..engine.prompt import Prompt
    from .lifecycle import OpenRequest


@attrs.frozen(kw_only=True)
class Job:
    """All that is to be done for one HTTP request."""

    id: str
    prompts: "tuple[Prompt, ...]"
    params: SamplingParams
    stream: bool
    include_usage: bool
    format: Format
    terms: Terms
    prompt_only: bool = False
    """Nothing is to be generated."""
    parsing: Parsing | None = None
    """How the answers' texts are read; None: all of them is content."""
    background: "Callable[[], bytes] | None" = None
    """Its client is answered by this as soon as the engine has it, and need not stay."""
    hold: "Callable[[OpenRequest], AbstractContextManager[Any]]" = nullcontext
    """A scope to run it in: whoever keeps account of it learns there that it ends. Left without an await."""
    tells_format: bool = False
    """`format` is told every output, also where nothing is streamed; the answers keep nothing then."""
    pooling: Pooling | None = None
    """Each prompt is to become a vector, and is not answered."""
    at_once: int = MAX_PROMPTS
    """Prompts that are in the engine at a time."""
    operation: str = "chat"
    """What OpenTelemetry calls it: chat, text_completion, embeddings."""

    @property
    def num_choices(self) -> int:
        """How many answers there are in all: those to the first prompt come first."""
        return len(self.prompts) * self.params.n

    def request_id(self, index: int) -> str:
        """What the engine calls the request of prompt `index`."""
        return self.id if len(self.prompts) == 1 else f"{self.id}-{index}"

    def label(self, index: int) -> str:
        """What its client calls it, which other requests may be called too."""
        name = self.terms.request_id
        return name if len(self.prompts) == 1 else f"{name}-{index}"


def chat_job(service: Service, body: bytes, envelope: Envelope) -> Job:
    """POST /v1/chat/completions. Raises InvalidRequest or ModelNotFound."""
    return chat_job_of(service, decode(body, ChatRequest), envelope)


def chat_job_of(service: Service, request: ChatRequest, envelope: Envelope) -> Job:
    """A chat's job, wherever the chat comes from. Raises InvalidRequest or ModelNotFound."""
    model = service.check_model(request.model)
    request.refuse_unserved()
    prompt, params, parsing = conversation_of(service, request)
    check_params(service, params, num_prompts=1)
    terms = read_terms(request, envelope, service.config)
    last = prompt.messages[-1]
    return Job(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        prompts=(prompt,),
        params=params,
        stream=bool(request.stream),
        include_usage=request.include_usage,
        format=ChatFormat(
            id=f"chatcmpl-{terms.request_id}",
            created=int(time.time()),
            model=model,
            spelling=_spelling(service, request),
            shape=_shape(service, request, params),
            opening_text=last["content"] if request.echo and last["role"] == "assistant" else "",
        ),
        terms=terms,
        parsing=parsing,
    )


def completion_job(service: Service, body: bytes, envelope: Envelope) -> Job:
    """POST /v1/completions. Raises InvalidRequest or ModelNotFound."""
    request = decode(body, CompletionRequest)
    model = service.check_model(request.model)
    request.refuse_unserved()
    prompts = completion_prompts(
        request.prompt,
        suffix=request.suffix,
        add_special_tokens=request.add_special_tokens is not False,
        cut=cut_of(service, request, 16 if request.max_tokens is None else request.max_tokens),
    )
    params = request.to_sampling(service.engine.logprobs_limit, **budget_of(service, request))
    check_params(service, params, num_prompts=len(prompts))
    at_once = service.engine.controls.settings.max_num_queued_reqs
    if request.stream and len(prompts) > at_once:
        raise InvalidRequest(
            f"prompt may hold at most {at_once} prompts in a stream, for which all of them are queued together "
            f"(--max-num-queued-reqs), not {len(prompts)}.",
            param="prompt",
        )
    terms = read_terms(request, envelope, service.config)
    echo = None
    if request.echo:
        texts = (prompt.text if isinstance(prompt, TextPrompt) and prompt.cut is None else None for prompt in prompts)
        echo = Echo(texts=tuple(texts), num_choices=params.n)
    return Job(
        id=f"cmpl-{uuid.uuid4().hex}",
        prompts=prompts,
        params=params,
        stream=bool(request.stream),
        include_usage=request.include_usage,
        format=CompletionFormat(
            id=f"cmpl-{terms.request_id}",
            created=int(time.time()),
            model=model,
            spelling=_spelling(service, request),
            shape=_shape(service, request, params),
            echo=echo,
            skip_special_tokens=params.skip_special_tokens,
        ),
        terms=terms,
        prompt_only=request.prompt_only,
        at_once=at_once,
        operation="text_completion",
    )


def embedding_job(service: Service, body: bytes, envelope: Envelope) -> Job:
    """POST /v1/embeddings. Raises InvalidRequest or ModelNotFound."""
    request = decode(body, EmbeddingRequest)
    model = service.check_model(request.model)
    pooling = Pooling(
        kind=request.pooling or service.config.embedding_pooling,
        dimensions=request.dimensions,
        normalize=request.normalize is not False,
    )
    service.engine.check_pooling(pooling)
    prompts = completion_prompts(
        request.input,
        add_special_tokens=request.add_special_tokens is not False,
        cut=cut_of(service, request, None, answered=False),
        param="input",
    )
    terms = read_terms(request, envelope, service.config)
    return Job(
        id=f"embd-{uuid.uuid4().hex}",
        prompts=prompts,
        params=SamplingParams(),
        stream=False,
        include_usage=False,
        format=EmbeddingFormat(
            id=f"embd-{terms.request_id}",
            created=int(time.time()),
            model=model,
            base64=request.encoding_format == "base64",
        ),
        terms=terms,
        pooling=pooling,
        at_once=min(AT_ONCE, max(1, service.engine.controls.settings.max_num_queued_reqs // 2)),
        operation="embeddings",
    )


def _shape(service: Service, request: ChatRequest | CompletionRequest, params: SamplingParams) -> Shape:
    return Shape(
        strict=service.config.strict_finish_reasons,
        num_top=params.logprobs if params.logprob_token_ids is None else len(params.logprob_token_ids),
        prompt_logprobs=request.prompt_logprobs is not None,
        token_ids=bool(request.return_token_ids),
        tokens_as_ids=bool(request.return_tokens_as_token_ids),
        usage_on_chunks=request.continuous_usage,
    )


def _spelling(service: Service, request: ChatRequest | CompletionRequest) -> Spelling:
    return Spelling(service.engine.tokenizer, as_ids=bool(request.return_tokens_as_token_ids))


def check_params(service: Service, params: SamplingParams, *, num_prompts: int) -> None:
    """What is known before the engine hears of it: every number of things has a bound."""
    if num_prompts * params.n > MAX_CHOICES:
        raise InvalidRequest(
            f"A request may have at most {MAX_CHOICES} answers; {num_prompts} prompts with n {params.n} have more.",
            param="n",
        )
    vocab_size = service.engine.tokenizer.vocab_size
    named = {
        "logit_bias": [token for token, _ in params.logit_bias],
        "allowed_token_ids": params.allowed_token_ids or (),
    }
    for field, token_ids in named.items():
        if len(token_ids) > vocab_size:
            raise InvalidRequest(f"{field} may name at most {vocab_size} tokens: there are no more.", param=field)
        if token_ids and max(token_ids) >= vocab_size:
            raise InvalidRequest(
                f"{field} must name token ids from 0 to {vocab_size - 1}, not {max(token_ids)}.", param=field
            )


def completion_prompts(
    prompt: str | list[str | int | list[int]],
    *,
    suffix: str | None = None,
    add_special_tokens: bool = True,
    cut: Cut | None = None,
    param: str = "prompt",
) -> "tuple[Prompt, ...]":
    """A text, a list of texts, token ids, or a list of those. The number of prompts is checked before one is built."""

    def text_prompt(text: str) -> "Prompt":
        if suffix is not None:
            return InfillPrompt(text=text, suffix=suffix, cut=cut)
        return TextPrompt(text=text, add_special_tokens=add_special_tokens, cut=cut, param=param)

    if isinstance(prompt, str):
        return (text_prompt(prompt),)
    if not prompt:
        raise InvalidRequest(f"{param} must not be an empty list.", param=param)
    kind = type(prompt[0])
    for index, entry in enumerate(prompt):
        if type(entry) is not kind:
            where = f"{param}[{index}]"
            raise InvalidRequest(
                f"{where} is malformed: {param} must be all texts, all token ids, or all lists of token ids.",
                param=where,
            )
        if entry == []:
            raise InvalidRequest(f"{param}[{index}] must not be an empty list.", param=f"{param}[{index}]")
    if suffix is not None and kind is not str:
        raise InvalidRequest("suffix takes a prompt that is a text, not token ids.", param="suffix")
    if kind is int:
        return (TokenPrompt(token_ids=tuple(prompt), cut=cut, param=param),)  # type: ignore[arg-type]
    if len(prompt) > MAX_PROMPTS:
        raise InvalidRequest(f"{param} may hold at most {MAX_PROMPTS} prompts, not {len(prompt)}.", param=param)
    return tuple(
        text_prompt(entry) if isinstance(entry, str) else TokenPrompt(token_ids=tuple(entry), cut=cut, param=param)  # type: ignore[arg-type]
        for entry in prompt
    )
