"""The generating routes: where each is, what reads its body, and in which words it is answered."""

from collections.abc import Callable

import attrs

from .anthropic.job import message_job
from .dialect import MESSAGES, OPENAI, RESPONSES, Dialect
from .jobs import Job, chat_job, completion_job, embedding_job
from .responses.job import response_job
from .service import Service
from .terms import Envelope


@attrs.frozen(kw_only=True)
class Generating:
    """One route."""

    make_job: Callable[[Service, bytes, Envelope], Job]
    dialect: Dialect = OPENAI


GENERATING = {
    "/v1/chat/completions": Generating(make_job=chat_job),
    "/v1/completions": Generating(make_job=completion_job),
    "/v1/embeddings": Generating(make_job=embedding_job),
    "/v1/responses": Generating(make_job=response_job, dialect=RESPONSES),
    "/v1/messages": Generating(make_job=message_job, dialect=MESSAGES),
}
