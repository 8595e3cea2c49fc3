"""What clients get: the parts that the bodies and the events of all answers have in common.

A choice that its deadline ended has `timed_out: true`; one that was ended from outside says by what in `stop_reason`.
"""

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import msgspec
import trio

from ..engine.core.events import FinishReason
from ..engine.core.logprobs import TokenLogprobs
from ..engine.parsing import Content, Delta, Parsed, collect
from ..engine.tokenizer import IncrementalDecoder
from .errors import HttpError

if TYPE_CHECKING:
    from ..engine.stream import Output, RequestStream
    from .parsing import Parsing, Reading


DONE = b"data: [DONE]\n\n"


class PromptDetails(msgspec.Struct, frozen=True):
    """How much of the prompts the prefix cache spared."""

    cached_tokens: int


class CompletionDetails(msgspec.Struct, frozen=True):
    """What the answers' tokens were."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a request, over all its prompts."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | msgspec.UnsetType = msgspec.UNSET
    """Of a model that reasons."""


@attrs.frozen(kw_only=True)
class Shape:
    """What an answer is to hold beside its text."""

    strict: bool = False
    """Say OpenAI's finish reasons alone."""
    num_top: int | None = None
    """With log-probabilities: of how many rivals of each token; None: without."""
    prompt_logprobs: bool = False
    token_ids: bool = False
    tokens_as_ids: bool = False
    """A token is spelled `token_id:ID`."""
    usage_on_chunks: bool = False

    @property
    def is_plain(self) -> bool:
        """A chunk holds text alone: the many that do are made from templates."""
        return self.num_top is None and not (self.token_ids or self.usage_on_chunks)


@attrs.define(kw_only=True)
class Answer:
    """What one choice has come to: its last output, which counts the tokens, and as much of the others as is needed."""

    index: int = 0
    prompt_only: bool = False
    """Nothing was to be generated: what the engine had to is dropped."""
    parsing: "Parsing | None" = None
    """How its text is read; None: all of it is content."""
    reading: "Reading | None" = None
    deltas: list[Delta] = attrs.field(factory=list)
    """What its last output came to; with `keep`, what all of them did."""
    told: bool = False
    """Its first event has been sent."""
    last: "Output | None" = None
    texts: list[str] = attrs.field(factory=list)
    token_ids: list[int] = attrs.field(factory=list)
    logprobs: list[TokenLogprobs] = attrs.field(factory=list)
    prompt_token_ids: tuple[int, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
    decoder: IncrementalDecoder | None = None
    """For the places of its tokens in the text, and up to where they have been looked at: the format's."""
    text_offset: int = 0

    def take(self, output: "Output", stream: "RequestStream", *, keep: bool) -> "Output":
        """Note an output, and give it back as the client is to see it: an end token is a token like the others.

        With `keep` its text, tokens and log-probabilities are kept too.
        """
        if self.last is None:
            self.prompt_token_ids = stream.prompt_token_ids
            self.prompt_logprobs = stream.prompt_logprobs  # known no more once the scope is left
        self.last = output = _with_end(_without_answer(output) if self.prompt_only else output)
        output = self._read(output, keep=keep)
        if keep:
            self.texts.append(output.text)
            self.token_ids += output.token_ids
            self.logprobs += output.logprobs
        return output

    def _read(self, output: "Output", *, keep: bool) -> "Output":
        if self.parsing is None:
            deltas: list[Delta] = [Content(output.text)] if output.text else []
        else:
            if self.reading is None:
                self.reading = self.parsing.start(self.prompt_token_ids)
            output, deltas = self.reading.take(output)
        if keep and self.parsing is not None:
            self.deltas += deltas
        else:
            self.deltas = deltas
        return output

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def parsed(self) -> Parsed:
        """The whole of it, where it has been kept."""
        return Parsed(content=self.text) if self.parsing is None else collect(self.deltas)

    @property
    def calls_tools(self) -> bool:
        """It holds calls, and says so with its finish reason."""
        says = self.parsing is not None and self.parsing.says_tool_calls
        return says and self.reading is not None and self.reading.num_calls > 0


def _without_answer(output: "Output") -> "Output":
    ended = FinishReason.LENGTH if output.finish_reason is FinishReason.STOP else output.finish_reason
    return attrs.evolve(
        output,
        text="",
        token_ids=(),
        logprobs=(),
        finish_reason=ended,
        stop_reason=None,
        num_output_tokens=0,
        end_token_id=None,
        end_logprobs=None,
    )


def _with_end(output: "Output") -> "Output":
    if output.end_token_id is None:
        return output
    end = () if output.end_logprobs is None else (output.end_logprobs,)
    token_ids = (*output.token_ids, output.end_token_id)
    return attrs.evolve(
        output, token_ids=token_ids, logprobs=output.logprobs + end, end_token_id=None, end_logprobs=None
    )


def usage_of(answers: list[Answer], *, num_choices: int = 1) -> Usage:
    """The sum over the choices of a request. A prompt, of which `num_choices` answers share one, counts once."""
    firsts = [answer.last for answer in answers[::num_choices] if answer.last is not None]
    prompt = sum(first.num_prompt_tokens for first in firsts)
    completion = sum(answer.last.num_output_tokens for answer in answers if answer.last is not None)
    cached = sum(first.num_cached_tokens for first in firsts)
    thinks = any(answer.parsing is not None and answer.parsing.thinking is not None for answer in answers)
    reasoning = sum(answer.reading.num_reasoning_tokens for answer in answers if answer.reading is not None)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptDetails(cached),
        completion_tokens_details=CompletionDetails(reasoning) if thinks else msgspec.UNSET,
    )


class Format(Protocol):
    """How a protocol writes its answer. Every `bytes` of a stream is whole events."""

    def delta(self, answer: Answer, output: "Output") -> bytes:
        """The events of an output that `answer` has taken; empty when there is nothing to say yet."""

    def opening(self) -> bytes:
        """What a stream begins with, before there is any output."""

    def closing(self, usage: Usage, *, include_usage: bool) -> bytes:
        """The last words of a stream that ends as it should."""

    def failure(self, error: HttpError) -> bytes:
        """The last words of a stream that breaks. Told of an error that comes before it, or without one, too."""

    def whole(self, answers: list[Answer], usage: Usage) -> bytes:
        """The body of a plain answer. May be called in a worker thread."""


class PlainStream:
    """How OpenAI's older streams begin and end: nothing, a usage event where it is asked for, and [DONE]."""

    def opening(self) -> bytes:
        return b""

    def closing(self, usage: Usage, *, include_usage: bool) -> bytes:
        return (self.usage(usage) if include_usage else b"") + DONE

    def failure(self, error: HttpError) -> bytes:
        return b"data: " + error.body + b"\n\n" + DONE

    def usage(self, usage: Usage) -> bytes:
        """The event that carries the usage, without choices."""
        raise NotImplementedError


LONG_ANSWER = 2048
"""From so many tokens with log-probabilities on, or as much work, a body is made in a thread: no stream stalls."""


async def whole_body(format: Format, answers: list[Answer], usage: Usage) -> bytes:
    """The body of a plain answer, made without holding up the others. Cancelled, a thread finishes for nobody."""
    make = partial(format.whole, answers, usage)
    if sum(_weight(answer) for answer in answers) < LONG_ANSWER:
        return make()
    return await trio.to_thread.run_sync(make, abandon_on_cancel=True)


def _weight(answer: Answer) -> int:
    """How long its part of a body takes, in tokens with log-probabilities."""
    vector = answer.last.vector if answer.last is not None else None
    return len(answer.logprobs) + len(answer.prompt_logprobs) + (len(vector) // 64 if vector is not None else 0)


_NOT_OPENAI = (FinishReason.TIMEOUT, FinishReason.ABORT, FinishReason.REPETITION)


def finish(output: "Output | None", *, strict: bool, called: bool = False) -> dict[str, Any]:
    """How a choice ended. `strict`: with OpenAI's finish reasons alone; `called`: it holds calls of tools."""
    if output is None or output.finish_reason is None:
        return {"finish_reason": None, "stop_reason": None}
    reason = output.finish_reason
    timed_out = {"timed_out": True} if reason is FinishReason.TIMEOUT else {}
    if strict and reason in _NOT_OPENAI:
        reason = FinishReason.LENGTH
    said = "tool_calls" if called and reason is FinishReason.STOP else str(reason)
    return {"finish_reason": said, "stop_reason": output.stop_reason, **timed_out}


@attrs.frozen(kw_only=True)
class Head:
    """What every body and event of an answer begins with."""

    id: str
    object: str
    created: int
    model: str

    def fields(self) -> dict[str, Any]:
        return {"id": self.id, "object": self.object, "created": self.created, "model": self.model}

    def opening(self) -> bytes:
        """The opening of an event, up to the value of `choices`."""
        return b"data: " + msgspec.json.encode(self.fields())[:-1] + b',"choices":['

    def event(self, choice: dict[str, Any], **more: Any) -> bytes:
        """An event of one choice."""
        return b"data: " + msgspec.json.encode({**self.fields(), "choices": [choice], **more}) + b"\n\n"

    def usage(self, usage: Usage) -> bytes:
        return self.opening() + b'],"usage":' + msgspec.json.encode(usage) + b"}\n\n"

    def body(self, choices: list[dict[str, Any]], usage: Usage, **more: Any) -> bytes:
        return msgspec.json.encode({**self.fields(), "choices": choices, "usage": usage, **more})


CLOSED = b"}]}\n\n"
OPEN_CHOICE = b',"logprobs":null,"finish_reason":null'


def closing(output: "Output", *, strict: bool, called: bool = False) -> bytes:
    """The end of the event that ends a choice."""
    return b',"logprobs":null,' + msgspec.json.encode(finish(output, strict=strict, called=called))[1:-1] + CLOSED
