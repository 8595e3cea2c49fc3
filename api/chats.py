"""How chats are answered: `chat.completion` and its chunks.

A chunk of a plain stream is built from byte templates made once for a request; only what it says is encoded anew.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from ..engine.parsing import CallArguments, CallStart, Content, Delta, Reasoning
from .answers import CLOSED, OPEN_CHOICE, Answer, Head, PlainStream, Shape, Usage, closing, finish, usage_of
from .tokens import Spelling

if TYPE_CHECKING:
    from ..engine.stream import Output


class ChatFormat(PlainStream):
    """The role first, then text deltas, then an empty delta with the finish reason."""

    def __init__(
        self, *, id: str, created: int, model: str, spelling: Spelling, shape: Shape, opening_text: str = ""
    ) -> None:
        """`opening_text`: what stands in front of each answer, of the message that it continues."""
        self._shape = shape
        self._spelling = spelling
        self._opening_text = opening_text
        self._body = Head(id=id, object="chat.completion", created=created, model=model)
        self._chunk = Head(id=id, object="chat.completion.chunk", created=created, model=model)
        self._event = self._chunk.opening()

    def delta(self, answer: Answer, output: "Output") -> bytes:
        if not self._shape.is_plain:
            return self._rich_delta(answer, output)
        events = b""
        opening = self._event + b'{"index":%d,"delta":{' % answer.index
        if not answer.told:
            events += opening + b'"role":"assistant","content":""}' + OPEN_CHOICE + CLOSED
        if answer.parsing is None:  # the many that are text alone
            text = output.text if answer.told else self._opening_text + output.text
            if text:
                events += opening + b'"content":' + msgspec.json.encode(text) + b"}" + OPEN_CHOICE + CLOSED
        else:
            for delta in self._deltas(answer):
                events += opening + msgspec.json.encode(wire_delta(delta))[1:] + OPEN_CHOICE + CLOSED
        if output.finish_reason is not None:
            events += opening + b"}" + closing(output, strict=self._shape.strict, called=answer.calls_tools)
        return events

    def _deltas(self, answer: Answer) -> list[Delta]:
        """What is new, behind the text that the answer goes on with."""
        if answer.told or not self._opening_text:
            return answer.deltas
        return [Content(self._opening_text), *answer.deltas]

    def usage(self, usage: Usage) -> bytes:
        return self._chunk.usage(usage)

    def whole(self, answers: list[Answer], usage: Usage) -> bytes:
        more: dict[str, Any] = {}
        if self._shape.prompt_logprobs:
            more["prompt_logprobs"] = self._spelling.prompt(answers[0].prompt_logprobs)
        if self._shape.token_ids:
            more["prompt_token_ids"] = answers[0].prompt_token_ids
        return self._body.body([self._choice(answer) for answer in answers], usage, **more)

    def _choice(self, answer: Answer) -> dict[str, Any]:
        shape = self._shape
        return {
            "index": answer.index,
            "message": self._message(answer),
            "logprobs": None if shape.num_top is None else self._spelling.chat(answer.logprobs, shape.num_top),
            **finish(answer.last, strict=shape.strict, called=answer.calls_tools),
            **({"token_ids": answer.token_ids} if shape.token_ids else {}),
        }

    def _message(self, answer: Answer) -> dict[str, Any]:
        parsed = answer.parsed
        content = self._opening_text + parsed.content
        said = bool(content) or not (parsed.calls or parsed.reasoning)
        message: dict[str, Any] = {"role": "assistant", "content": content if said else None, "refusal": None}
        if answer.parsing is not None and answer.parsing.thinking is not None:
            message |= {"reasoning": parsed.reasoning or None, "reasoning_content": parsed.reasoning or None}
        if parsed.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in parsed.calls
            ]
        return message

    def _rich_delta(self, answer: Answer, output: "Output") -> bytes:
        shape, events = self._shape, b""
        chunk_usage = {"usage": usage_of([answer])} if shape.usage_on_chunks else {}

        def event(delta: dict[str, Any], choice: dict[str, Any], **more: Any) -> bytes:
            opened = {"index": answer.index, "delta": delta, "logprobs": None, "finish_reason": None}
            return self._chunk.event({**opened, **choice}, **chunk_usage, **more)

        if not answer.told:
            prompt = {"prompt_token_ids": answer.prompt_token_ids} if shape.token_ids else {}
            events += event({"role": "assistant", "content": ""}, {}, **prompt)
            if self._opening_text:
                events += event({"content": self._opening_text}, {})
        # The tokens of an output stand beside the first thing that it says, or beside nothing.
        deltas = [wire_delta(delta) for delta in answer.deltas]
        if output.token_ids and not deltas:
            deltas = [{"content": ""} if answer.parsing is None else {}]
        choice: dict[str, Any] = {}
        if shape.num_top is not None:
            choice["logprobs"] = self._spelling.chat(output.logprobs, shape.num_top)
        if shape.token_ids:
            choice["token_ids"] = output.token_ids
        for place, delta in enumerate(deltas):
            events += event(delta, {} if place else choice)
        if output.finish_reason is not None:
            events += event({}, finish(output, strict=shape.strict, called=answer.calls_tools))
        return events


def wire_delta(delta: Delta) -> dict[str, Any]:
    """As it stands in a chunk."""
    match delta:
        case Content():
            return {"content": delta.text}
        case Reasoning():
            return {"reasoning": delta.text, "reasoning_content": delta.text}
        case CallStart():
            call = {"index": delta.index, "id": delta.id, "type": "function"}
            return {"tool_calls": [{**call, "function": {"name": delta.name, "arguments": ""}}]}
        case CallArguments():
            return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}
