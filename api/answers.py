"""What clients get: the response bodies of chats and completions, and the events of their streams.

A choice that its deadline ended has `timed_out: true`; one that was ended from outside says by what in `stop_reason`.
An event is built from byte templates made once for a request; only the text of a delta is encoded anew.
"""

from typing import TYPE_CHECKING, Any, Protocol

import attrs
import msgspec

from ..engine.core.events import FinishReason

if TYPE_CHECKING:
    from ..engine.stream import Output


class PromptDetails(msgspec.Struct, frozen=True):
    """How much of the prompts the prefix cache spared."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a request, over all its prompts."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptDetails


@attrs.define(kw_only=True)
class Answer:
    """What one choice has come to: its texts so far, and the last output, which counts the tokens."""

    texts: list[str] = attrs.field(factory=list)
    last: "Output | None" = None

    def take(self, output: "Output", *, keep_text: bool) -> None:
        self.last = output
        if keep_text and output.text:
            self.texts.append(output.text)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def usage_of(answers: list[Answer], *, num_choices: int = 1) -> Usage:
    """The sum over the choices of a request. A prompt, of which `num_choices` answers share one, counts once."""
    firsts = [answer.last for answer in answers[::num_choices] if answer.last is not None]
    prompt = sum(first.num_prompt_tokens for first in firsts)
    completion = sum(answer.last.num_output_tokens for answer in answers if answer.last is not None)
    cached = sum(first.num_cached_tokens for first in firsts)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptDetails(cached),
    )


class Format(Protocol):
    """How a protocol writes its answer. Every `bytes` of a stream is whole events."""

    def delta(self, index: int, output: "Output", *, first: bool) -> bytes:
        """The events of an output; empty when there is nothing to say yet."""

    def usage(self, usage: Usage) -> bytes:
        """The event that carries the usage, without choices."""

    def whole(self, answers: list[Answer], usage: Usage) -> bytes:
        """The body of a plain answer."""


def _finish(output: "Output | None", *, strict: bool) -> dict[str, Any]:
    """How a choice ended. `strict`: with OpenAI's finish reasons alone."""
    if output is None or output.finish_reason is None:
        return {"finish_reason": None, "stop_reason": None}
    reason = output.finish_reason
    timed_out = {"timed_out": True} if reason is FinishReason.TIMEOUT else {}
    if strict and reason in (FinishReason.TIMEOUT, FinishReason.ABORT):
        reason = FinishReason.LENGTH
    return {"finish_reason": str(reason), "stop_reason": output.stop_reason, **timed_out}


@attrs.frozen(kw_only=True)
class _Head:
    """What every body and event of an answer begins with."""

    id: str
    object: str
    created: int
    model: str

    def fields(self) -> dict[str, Any]:
        return {"id": self.id, "object": self.object, "created": self.created, "model": self.model}

    def event(self) -> bytes:
        """The opening of an event, up to the value of `choices`."""
        return b"data: " + msgspec.json.encode(self.fields())[:-1] + b',"choices":['

    def usage(self, usage: Usage) -> bytes:
        return self.event() + b'],"usage":' + msgspec.json.encode(usage) + b"}\n\n"

    def body(self, choices: list[dict[str, Any]], usage: Usage) -> bytes:
        return msgspec.json.encode({**self.fields(), "choices": choices, "usage": usage})


_CLOSED = b"}]}\n\n"
_OPEN_CHOICE = b',"logprobs":null,"finish_reason":null'


def _closing(output: "Output", *, strict: bool) -> bytes:
    """The end of the event that ends a choice."""
    return b',"logprobs":null,' + msgspec.json.encode(_finish(output, strict=strict))[1:-1] + _CLOSED


class ChatFormat:
    """`chat.completion` and its chunks: the role first, text deltas, then an empty delta with the finish reason."""

    def __init__(self, *, id: str, created: int, model: str, strict: bool = False) -> None:
        self._strict = strict
        self._body = _Head(id=id, object="chat.completion", created=created, model=model)
        self._chunk = _Head(id=id, object="chat.completion.chunk", created=created, model=model)
        self._event = self._chunk.event()

    def delta(self, index: int, output: "Output", *, first: bool) -> bytes:
        events = b""
        opening = self._event + b'{"index":%d,"delta":{' % index
        if first:
            events += opening + b'"role":"assistant","content":""}' + _OPEN_CHOICE + _CLOSED
        if output.text:
            text = msgspec.json.encode(output.text)
            events += opening + b'"content":' + text + b"}" + _OPEN_CHOICE + _CLOSED
        if output.finish_reason is not None:
            events += opening + b"}" + _closing(output, strict=self._strict)
        return events

    def usage(self, usage: Usage) -> bytes:
        return self._chunk.usage(usage)

    def whole(self, answers: list[Answer], usage: Usage) -> bytes:
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": answer.text, "refusal": None},
                "logprobs": None,
            }
            | _finish(answer.last, strict=self._strict)
            for index, answer in enumerate(answers)
        ]
        return self._body.body(choices, usage)


class CompletionFormat:
    """`text_completion`, whole and in chunks: the answers to the first prompt have the first indexes."""

    def __init__(self, *, id: str, created: int, model: str, strict: bool = False) -> None:
        self._strict = strict
        self._head = _Head(id=id, object="text_completion", created=created, model=model)
        self._open = self._head.event()

    def delta(self, index: int, output: "Output", *, first: bool) -> bytes:
        if not output.text and output.finish_reason is None:
            return b""
        choice = b'{"index":%d,"text":%b' % (index, msgspec.json.encode(output.text))
        if output.finish_reason is None:
            return self._open + choice + _OPEN_CHOICE + _CLOSED
        return self._open + choice + _closing(output, strict=self._strict)

    def usage(self, usage: Usage) -> bytes:
        return self._head.usage(usage)

    def whole(self, answers: list[Answer], usage: Usage) -> bytes:
        choices = [
            {"index": index, "text": answer.text, "logprobs": None} | _finish(answer.last, strict=self._strict)
            for index, answer in enumerate(answers)
        ]
        return self._head.body(choices, usage)
