"""POST /v1/embeddings: the body that clients send, and how vectors are given back.

The request runs as any other (`generate.py`): its inputs are prompts that are not answered.
"""

from base64 import b64encode
from typing import TYPE_CHECKING, Annotated, Literal

import attrs
import msgspec
from msgspec import Meta

from ..engine.core.events import FinishReason
from ..engine.core.pooling import PoolingKind, numbers_of
from .answers import Answer, Head, PlainStream, Usage
from .errors import Cancelled, TimedOut
from .wire import Token

if TYPE_CHECKING:
    from ..engine.stream import Output

AT_ONCE = 64
"""Inputs of one request that are in the engine at a time, and no more than half of the queue's places: a list of a
thousand leaves room in the queue for others, and is served however short that is."""


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    """The body of POST /v1/embeddings."""

    input: str | list[str | Token | list[Token]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    pooling: PoolingKind | None = None
    """Of the last token, or the mean of all; by default what --embedding-pooling says."""
    normalize: bool | None = None
    """By default a vector is one long."""
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None

    request_id: str | None = None
    timeout: float | None = None
    max_queue_time: float | None = None
    priority: int | None = None
    cache_salt: str | None = None
    user: str | None = None


@attrs.frozen(kw_only=True)
class EmbeddingFormat(PlainStream):
    """All the vectors in one body: it is never streamed."""

    id: str
    created: int
    model: str
    base64: bool = False

    def delta(self, answer: Answer, output: "Output") -> bytes:
        return b""

    def whole(self, answers: list[Answer], usage: Usage) -> bytes:
        """Raises TimedOut or Cancelled where an input has no vector."""
        data = [
            {"object": "embedding", "index": answer.index, "embedding": self._encoded(_vector(answer))}
            for answer in answers
        ]
        head = Head(id=self.id, object="list", created=self.created, model=self.model)
        return msgspec.json.encode({**head.fields(), "data": data, "usage": usage})

    def _encoded(self, vector: bytes) -> str | list[float]:
        return b64encode(vector).decode() if self.base64 else numbers_of(vector)


def _vector(answer: Answer) -> bytes:
    last = answer.last
    if last is not None and last.vector is not None:
        return last.vector
    if last is not None and last.finish_reason is FinishReason.TIMEOUT:
        raise TimedOut("The request's time was over before all of its inputs had a vector.")
    why = last.stop_reason if last is not None else None
    raise Cancelled(f"The request was {why or 'cancelled'} before all of its inputs had a vector.")
