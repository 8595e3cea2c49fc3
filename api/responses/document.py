"""One response, from its request to its end: what it says of itself, as an object and as the events of a stream.

It is the `Format` of its job. It is told every output, streamed or not, so that it can be read at any time; when it
ends, for whatever reason, it hands itself to whoever keeps responses, once. Synchronous throughout.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from ...engine.core.events import FinishReason
from ...engine.parsing import CallArguments, CallStart, Content, Delta, Reasoning
from ..answers import Answer, Usage, usage_of
from ..errors import HttpError
from ..tokens import Spelling
from .output import Events, Output
from .store import Stored

if TYPE_CHECKING:
    from ...engine.stream import Output as EngineOutput

FINAL = ("completed", "incomplete", "cancelled", "failed")


@attrs.frozen(kw_only=True)
class Asked:
    """What a response repeats of its request, and how it is to be written."""

    id: str
    caller: str
    model: str
    created: int
    echo: dict[str, Any]
    """The fields that are given back as they came, or as they were understood."""
    input_items: bytes
    previous: str | None
    store: bool
    background: bool
    num_top: int | None
    """With log-probabilities: of how many rivals of each token; None: without."""
    strict: bool
    """Say OpenAI's reasons alone."""


class Response:
    """A response. `keep` is told when it has ended, and says whether it can be read from now on."""

    def __init__(self, asked: Asked, spelling: Spelling, keep: "Callable[[Response], bool]") -> None:
        self.asked = asked
        self.status = "queued" if asked.background else "in_progress"
        self._spelling = spelling
        self._keep = keep
        self._events = Events()
        self._output = Output(self._events)
        self._logprobs: list[bytes] = []
        """Not told yet: entries as JSON, without brackets around them."""
        self._answer: Answer | None = None
        self._finish: FinishReason | None = None
        self._error: dict[str, Any] | None = None
        self._completed: int | None = None
        self._is_known = False
        """Its client has its id."""
        self._is_kept = asked.store

    # The format.

    def opening(self) -> bytes:
        self._is_known = True
        return self._told("response.created") + self._told("response.in_progress")

    def delta(self, answer: Answer, output: "EngineOutput") -> bytes:
        self._answer = answer
        self.status = "in_progress"
        if self.asked.num_top is not None and output.logprobs:
            entries = self._spelling.chat(output.logprobs, self.asked.num_top)["content"]
            self._logprobs.append(msgspec.json.encode(entries)[1:-1])
        events = b"".join(self._delta(delta) for delta in answer.deltas)
        if output.finish_reason is not None:
            self._finish = output.finish_reason
            if self._logprobs and self._output.is_text:
                events += self._delta(Content(""))
        return events

    def closing(self, usage: Usage, *, include_usage: bool = True) -> bytes:
        events = self._end(_STATUSES[self._finish or FinishReason.ABORT])
        kind = "completed" if self.status == "completed" else "incomplete"
        return events + self._told(f"response.{kind}")

    def failure(self, error: HttpError) -> bytes:
        self._error = {"code": error.error.code or error.error.type, "message": error.error.message}
        return self._end("failed") + self._told("response.failed")

    def whole(self, answers: list[Answer], usage: Usage) -> bytes:
        self._end(_STATUSES[self._finish or FinishReason.ABORT])
        return self.body()

    # What else becomes of it.

    def acknowledged(self) -> bytes:
        """For a client that does not wait for the end."""
        self._is_known = True
        return self.body()

    def abandon(self) -> None:
        """Its client has gone, or the server stops: it ends as it is."""
        self._end("cancelled")

    def body(self) -> bytes:
        """As it is now."""
        return msgspec.json.encode(self.described())

    def stored(self) -> Stored:
        return Stored(
            body=self.body(),
            input_items=self.asked.input_items,
            output_items=msgspec.json.encode(self._output.described()),
            previous=self.asked.previous,
        )

    @property
    def is_known(self) -> bool:
        """Somebody can ask for it: a refusal is an error, and no response."""
        return self._is_known or self.status != "failed"

    def described(self) -> dict[str, Any]:
        asked = self.asked
        return {
            "id": asked.id,
            "object": "response",
            "created_at": asked.created,
            "status": self.status,
            "background": asked.background,
            "completed_at": self._completed,
            "error": self._error,
            "incomplete_details": self._incomplete_details(),
            "model": asked.model,
            "output": self._output.described(),
            "previous_response_id": asked.previous,
            "store": self._is_kept,
            **asked.echo,
            "usage": self._usage() if self.status in FINAL else None,
        }

    def _delta(self, delta: Delta) -> bytes:
        """Tokens whose text came to nothing yet are told with the next text; those of anything but text are not."""
        logprobs, self._logprobs = self._logprobs, []
        match delta:
            case Content(text):
                return self._output.text(text, b",".join(logprobs))
            case Reasoning(text):
                return self._output.reasoning(text)
            case CallStart():
                return self._output.call(delta.name, delta.id)
            case CallArguments(_, text):
                return self._output.arguments(text)

    def _end(self, status: str) -> bytes:
        if self.status in FINAL:
            return b""
        self.status = status
        if status == "completed":
            self._completed = int(time.time())
        events = self._output.end("completed" if status == "completed" else "incomplete")
        self._is_kept = self._keep(self)
        return events

    def _told(self, type_: str) -> bytes:
        return self._events.event(type_, response=self.described())

    def _incomplete_details(self) -> dict[str, str] | None:
        """Why it is incomplete. OpenAI knows of two reasons; ours are others where it was neither."""
        if self.status != "incomplete":
            return None
        if self._finish is FinishReason.LENGTH or self.asked.strict:
            return {"reason": "max_output_tokens"}
        return {"reason": str(self._finish)}

    def _usage(self) -> dict[str, Any] | None:
        if self._answer is None:
            return None
        usage = usage_of([self._answer])
        details = usage.completion_tokens_details
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": usage.prompt_tokens_details.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": details.reasoning_tokens if details else 0},
            "total_tokens": usage.total_tokens,
        }


_STATUSES = {
    FinishReason.STOP: "completed",
    FinishReason.LENGTH: "incomplete",
    FinishReason.REPETITION: "incomplete",
    FinishReason.TIMEOUT: "incomplete",
    FinishReason.ABORT: "cancelled",
    FinishReason.ERROR: "failed",
}
