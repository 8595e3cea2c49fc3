"""`POST /v1/responses`: from its body to a job, by way of a chat."""

import time
from functools import partial

import attrs
import msgspec

from ...engine.core.errors import InvalidRequest
from ..body import decode
from ..dialect import RESPONSES
from ..jobs import Job, chat_job_of
from ..messages import Message
from ..service import Service
from ..terms import Envelope
from ..tokens import Spelling
from ..wire import ChatRequest
from .document import Asked, Response
from .items import InputItem, messages_of
from .output import new_id
from .requests import ResponsesRequest

_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def response_job(service: Service, body: bytes, envelope: Envelope) -> Job:
    """Raises InvalidRequest, ModelNotFound, or NotFound for a response that is to be continued."""
    request = decode(body, ResponsesRequest)
    request.refuse_unserved()
    if request.background and not service.responses.max_bytes:
        raise InvalidRequest("background needs stored responses (--response-store-size).", param="background")
    chat = chat_of(service, request, envelope.caller)
    with RESPONSES.renaming():
        job = chat_job_of(service, chat, envelope)
    asked = Asked(
        id=new_id("resp"),
        caller=envelope.caller,
        model=service.check_model(request.model),
        created=int(time.time()),
        echo=request.echo(),
        input_items=msgspec.json.encode([_named(item) for item in request.items()]),
        previous=request.previous_response_id,
        store=request.stores,
        background=bool(request.background),
        num_top=request.num_top,
        strict=service.config.strict_finish_reasons,
    )
    response = Response(asked, Spelling(service.engine.tokenizer), service.responses.keep)
    if request.background and response.stored().num_bytes > service.responses.max_bytes:
        raise InvalidRequest(
            f"A background response is read from the store, which holds {service.responses.max_bytes} bytes "
            "(--response-store-size): this request alone has more.",
            param="background",
        )
    return attrs.evolve(
        job,
        id=asked.id,
        format=response,
        hold=service.responses.hold(response),
        background=response.acknowledged if request.background else None,
        tells_format=True,
    )


def chat_of(service: Service, request: ResponsesRequest, caller: str) -> ChatRequest:
    """The chat that a request asks for, with all that was said before. Raises InvalidRequest or NotFound."""
    before = _stored_items(service, caller, request.previous_response_id)
    messages = messages_of([*before, *request.items()], num_before=len(before))
    if request.instructions is not None:
        messages.insert(0, Message(role="system", content=request.instructions))
    return request.to_chat(messages)


def _stored_items(service: Service, caller: str, response_id: str | None) -> list[InputItem]:
    """All that was said before. What a chain holds together is bounded like a body."""
    if response_id is None:
        return []
    chain = service.responses.chain(caller, response_id)
    limit = service.config.max_body_size
    if sum(len(stored.input_items) + len(stored.output_items) for stored in chain) > limit:
        raise InvalidRequest(
            f"The conversation that previous_response_id continues has more than {limit} bytes (--max-body-size).",
            param="previous_response_id",
        )
    read = partial(msgspec.json.decode, type=list[InputItem])
    return [item for stored in chain for text in (stored.input_items, stored.output_items) for item in read(text)]


def _named(item: InputItem) -> InputItem:
    """With its type and an id."""
    return msgspec.structs.replace(item, type=item.kind, id=item.id or new_id(_PREFIXES[item.kind]))
