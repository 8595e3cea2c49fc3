"""What clients get: the response bodies of chats and completions, and the events of their streams.

An event is built from byte templates made once for a request; only the text of a delta is encoded anew.
"""

from typing import TYPE_CHECKING, Any, Protocol

import attrs
import msgspec

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
    """What one prompt has come to: its texts so far, and the last output, which counts the tokens."""

    texts: list[str] = attrs.field(factory=list)
    last: "Output | None" = None

    def take(self, output: "Output", *, keep_text: bool) -> None:
        self.last = output
        if keep_text and output.text:
            self.texts.append(output.text)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def finish(self) -> dict[str, Any]:
        reason = self.last.finish_reason if self.last is not None else None
        return {
            "logprobs": None,
            "finish_reason": str(reason) if reason is not None else None,
            "stop_reason": self.last.stop_reason if self.last is not None else None,
        }


def usage_of(answers: list[Answer]) -> Usage:
    """The sum over the prompts of a request."""
    ends = [answer.last for answer in answers if answer.last is not None]
    prompt = sum(end.num_prompt_tokens for end in ends)
    completion = sum(end.num_output_tokens for end in ends)
    cached = sum(end.num_cached_tokens for end in ends)
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

    def whole(self, answers: list[Answer]) -> bytes:
        """The body of a plain answer."""


def _finish(output: "Output") -> bytes:
    reason = msgspec.json.encode(str(output.finish_reason))
    return b'"finish_reason":' + reason + b',"stop_reason":' + msgspec.json.encode(output.stop_reason)


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

    def body(self, choices: list[dict[str, Any]], answers: list[Answer]) -> bytes:
        return msgspec.json.encode({**self.fields(), "choices": choices, "usage": usage_of(answers)})


_CLOSED = b"}]}\n\n"
_OPEN_CHOICE = b',"logprobs":null,"finish_reason":null'


class ChatFormat:
    """`chat.completion` and its chunks: the role first, text deltas, then an empty delta with the finish reason."""

    def __init__(self, *, id: str, created: int, model: str) -> None:
        self._body = _Head(id=id, object="chat.completion", created=created, model=model)
        self._chunk = _Head(id=id, object="chat.completion.chunk", created=created, model=model)
        self._open = self._chunk.event() + b'{"index":0,"delta":{'

    def delta(self, index: int, output: "Output", *, first: bool) -> bytes:
        events = b""
        if first:
            events += self._open + b'"role":"assistant","content":""}' + _OPEN_CHOICE + _CLOSED
        if output.text:
            text = msgspec.json.encode(output.text)
            events += self._open + b'"content":' + text + b"}" + _OPEN_CHOICE + _CLOSED
        if output.finish_reason is not None:
            events += self._open + b'},"logprobs":null,' + _finish(output) + _CLOSED
        return events

    def usage(self, usage: Usage) -> bytes:
        return self._chunk.usage(usage)

    def whole(self, answers: list[Answer]) -> bytes:
        choices = [
            {"index": index, "message": {"role": "assistant", "content": answer.text, "refusal": None}, **answer.finish}
            for index, answer in enumerate(answers)
        ]
        return self._body.body(choices, answers)


class CompletionFormat:
    """`text_completion`, whole and in chunks: the index of a choice is that of its prompt."""

    def __init__(self, *, id: str, created: int, model: str) -> None:
        self._head = _Head(id=id, object="text_completion", created=created, model=model)
        self._open = self._head.event()

    def delta(self, index: int, output: "Output", *, first: bool) -> bytes:
        if not output.text and output.finish_reason is None:
            return b""
        choice = b'{"index":%d,"text":%b' % (index, msgspec.json.encode(output.text))
        if output.finish_reason is None:
            return self._open + choice + _OPEN_CHOICE + _CLOSED
        return self._open + choice + b',"logprobs":null,' + _finish(output) + _CLOSED

    def usage(self, usage: Usage) -> bytes:
        return self._head.usage(usage)

    def whole(self, answers: list[Answer]) -> bytes:
        choices = [{"index": index, "text": answer.text, **answer.finish} for index, answer in enumerate(answers)]
        return self._head.body(choices, answers)
