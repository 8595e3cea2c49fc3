"""`POST /v1/messages`: from its body to a job, by way of a chat."""

import uuid

import attrs

from ..body import decode
from ..dialect import MESSAGES
from ..jobs import Job, chat_job_of
from ..parsing import formats_for
from ..service import Service
from ..terms import Envelope
from .message import MessageFormat
from .requests import MessagesRequest


def message_job(service: Service, body: bytes, envelope: Envelope) -> Job:
    """Raises InvalidRequest or ModelNotFound."""
    request = decode(body, MessagesRequest)
    request.refuse_unserved()
    chat = request.to_chat()
    if formats_for(service, template=None, for_tools=bool(chat.tools)).reasoning is None:
        chat.thinking_token_budget = None  # What does not think keeps any budget; and enabling it takes one.
    with MESSAGES.renaming():
        job = chat_job_of(service, chat, envelope)
    answer = MessageFormat(
        id=f"msg_{uuid.uuid4().hex}",
        model=service.check_model(request.model),
        strict=service.config.strict_finish_reasons,
    )
    return attrs.evolve(job, format=answer, tells_format=True)
