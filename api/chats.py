"""How chats are answered: `chat.completion` and its chunks.

A chunk of a plain stream is built from byte templates made once for a request; only the text is encoded anew.
"""

from typing import TYPE_CHECKING, Any

import msgspec

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
        text = output.text if answer.told else self._opening_text + output.text
        if text:
            events += opening + b'"content":' + msgspec.json.encode(text) + b"}" + OPEN_CHOICE + CLOSED
        if output.finish_reason is not None:
            events += opening + b"}" + closing(output, strict=self._shape.strict)
        return events

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
            "message": {"role": "assistant", "content": self._opening_text + answer.text, "refusal": None},
            "logprobs": None if shape.num_top is None else self._spelling.chat(answer.logprobs, shape.num_top),
            **finish(answer.last, strict=shape.strict),
            **({"token_ids": answer.token_ids} if shape.token_ids else {}),
        }

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
        if output.text or output.token_ids:
            choice: dict[str, Any] = {}
            if shape.num_top is not None:
                choice["logprobs"] = self._spelling.chat(output.logprobs, shape.num_top)
            if shape.token_ids:
                choice["token_ids"] = output.token_ids
            events += event({"content": output.text}, choice)
        if output.finish_reason is not None:
            events += event({}, finish(output, strict=shape.strict))
        return events
