"""From a request's body to a job for the engine: the prompts, the parameters, and the format of the answer."""

import time
import uuid
from typing import TYPE_CHECKING

import attrs

from ..engine.core.errors import InvalidRequest
from ..engine.core.params import SamplingParams
from ..engine.prompt import ChatPrompt, TextPrompt, TokenPrompt
from .answers import ChatFormat, CompletionFormat, Format
from .body import decode
from .service import Service
from .terms import Envelope, Terms, read_terms
from .wire import (
    MAX_CHOICES,
    MAX_PROMPTS,
    ChatRequest,
    CompletionRequest,
    Message,
    TokenizeRequest,
    template_messages,
)

if TYPE_CHECKING:
    from ..engine.prompt import Prompt


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

    @property
    def num_choices(self) -> int:
        """How many answers there are in all: those to the first prompt come first."""
        return len(self.prompts) * self.params.n

    def request_id(self, index: int) -> str:
        """What the engine calls the request of prompt `index`."""
        return self.id if len(self.prompts) == 1 else f"{self.id}-{index}"


def chat_job(service: Service, body: bytes, envelope: Envelope) -> Job:
    """POST /v1/chat/completions. Raises InvalidRequest or ModelNotFound."""
    request = decode(body, ChatRequest)
    model = service.check_model(request.model)
    request.refuse_unserved()
    prompt = chat_prompt(service, request, request.messages)
    job_id = f"chatcmpl-{uuid.uuid4().hex}"
    answer = ChatFormat(id=job_id, created=int(time.time()), model=model, strict=service.config.strict_finish_reasons)
    return _job(service, job_id, request, (prompt,), answer, envelope)


def chat_prompt(
    service: Service,
    request: ChatRequest | TokenizeRequest,
    messages: list[Message],
    *,
    add_generation_prompt: bool = True,
) -> ChatPrompt:
    """The conversation of a request, its own template and variables with it where the server takes such."""
    if request.chat_template is not None and not service.config.trust_request_chat_template:
        raise InvalidRequest(
            "chat_template is not taken from requests here (--trust-request-chat-template).", param="chat_template"
        )
    return ChatPrompt(
        messages=template_messages(messages),
        add_generation_prompt=add_generation_prompt,
        template_kwargs=request.chat_template_kwargs or {},
        chat_template=request.chat_template,
    )


def completion_job(service: Service, body: bytes, envelope: Envelope) -> Job:
    """POST /v1/completions. Raises InvalidRequest or ModelNotFound."""
    request = decode(body, CompletionRequest)
    model = service.check_model(request.model)
    request.refuse_unserved()
    prompts = completion_prompts(request.prompt)
    job_id = f"cmpl-{uuid.uuid4().hex}"
    strict = service.config.strict_finish_reasons
    answer = CompletionFormat(id=job_id, created=int(time.time()), model=model, strict=strict)
    return _job(service, job_id, request, prompts, answer, envelope)


def _job(
    service: Service,
    job_id: str,
    request: ChatRequest | CompletionRequest,
    prompts: "tuple[Prompt, ...]",
    answer: Format,
    envelope: Envelope,
) -> Job:
    params = request.to_sampling()
    if len(prompts) * params.n > MAX_CHOICES:
        raise InvalidRequest(
            f"A request may have at most {MAX_CHOICES} answers; {len(prompts)} prompts with n {params.n} have more.",
            param="n",
        )
    return Job(
        id=job_id,
        prompts=prompts,
        params=params,
        stream=bool(request.stream),
        include_usage=request.include_usage,
        format=answer,
        terms=read_terms(request, envelope, service.config),
    )


def completion_prompts(prompt: str | list[str | int | list[int]]) -> "tuple[Prompt, ...]":
    """A text, a list of texts, token ids, or a list of those. The number of prompts is checked before one is built."""
    if isinstance(prompt, str):
        return (TextPrompt(text=prompt),)
    if not prompt:
        raise InvalidRequest("prompt must not be an empty list.", param="prompt")
    kind = type(prompt[0])
    for index, entry in enumerate(prompt):
        if type(entry) is not kind:
            where = f"prompt[{index}]"
            raise InvalidRequest(
                f"{where} is malformed: prompt must be all texts, all token ids, or all lists of token ids.",
                param=where,
            )
        if entry == []:
            raise InvalidRequest(f"prompt[{index}] must not be an empty list.", param=f"prompt[{index}]")
    if kind is int:
        return (TokenPrompt(token_ids=tuple(prompt)),)  # type: ignore[arg-type]
    if len(prompt) > MAX_PROMPTS:
        raise InvalidRequest(f"prompt may hold at most {MAX_PROMPTS} prompts, not {len(prompt)}.", param="prompt")
    return tuple(
        TextPrompt(text=entry) if isinstance(entry, str) else TokenPrompt(token_ids=tuple(entry))  # type: ignore[arg-type]
        for entry in prompt
    )


JOBS = {"/v1/chat/completions": chat_job, "/v1/completions": completion_job}
"""The generating routes, each with what reads its body."""
