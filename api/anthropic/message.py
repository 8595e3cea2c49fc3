"""The answer of the Messages API: one message of blocks, whole or as events.

It is the `Format` of its job, and is told every output, streamed or not. A stream begins with the first output, when it
is known how much of the prompt the cache spared. Pure.
"""

from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from ...engine.core.events import FinishReason
from ...engine.parsing import CallArguments, CallStart, Content, Delta, Reasoning
from ..answers import Answer, Usage, usage_of
from ..dialect import anthropic_error
from ..errors import HttpError

if TYPE_CHECKING:
    from ...engine.stream import Output

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
UNPARSED = "_unparsed"
"""Where a call's input is kept that is no object of JSON, for it was cut off."""

_DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":%b:%b}}\n\n'

_REASONS = {FinishReason.STOP: "end_turn", FinishReason.LENGTH: "max_tokens"}


def _event(type_: str, **fields: Any) -> bytes:
    body = msgspec.json.encode({"type": type_, **fields})
    return b"event: %b\ndata: %b\n\n" % (type_.encode(), body)


@attrs.define(kw_only=True)
class _Block:
    """One block; the last one may still grow. `begun` is how its stream tells that it begins."""

    index: int
    kind: type[Delta]
    begun: dict[str, Any]
    texts: list[str] = attrs.field(factory=list)

    def described(self) -> dict[str, Any]:
        text = "".join(self.texts)
        if self.kind is Content:
            return {**self.begun, "text": text}
        if self.kind is Reasoning:
            return {**self.begun, "thinking": text}
        return {**self.begun, "input": _input(text)}


def _input(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {UNPARSED: text}


class MessageFormat:
    """One message."""

    def __init__(self, *, id: str, model: str, strict: bool) -> None:
        self._head = {"id": id, "type": "message", "role": "assistant", "model": model}
        self._strict = strict
        self._blocks: list[_Block] = []
        self._is_open = False
        self._answer: Answer | None = None

    def opening(self) -> bytes:
        return b""

    def delta(self, answer: Answer, output: "Output") -> bytes:
        events = b"" if self._answer is not None else self._start(answer)
        self._answer = answer
        for delta in answer.deltas:
            match delta:
                case Content(text):
                    events += self._grow(Content, b'"text_delta","text"', text)
                case Reasoning(text):
                    events += self._grow(Reasoning, b'"thinking_delta","thinking"', text)
                case CallArguments(_, text):
                    events += self._grow(CallStart, b'"input_json_delta","partial_json"', text)
                case CallStart():
                    events += self._begin(
                        CallStart, {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
                    )
        return events

    def closing(self, usage: Usage, *, include_usage: bool = True) -> bytes:
        reason, sequence = self._ended()
        ended = {"stop_reason": reason, "stop_sequence": sequence}
        return self._close() + _event("message_delta", delta=ended, usage=self._usage()) + _event("message_stop")

    def failure(self, error: HttpError) -> bytes:
        return b"event: error\ndata: " + anthropic_error(error) + b"\n\n"

    def whole(self, answers: list[Answer], usage: Usage) -> bytes:
        reason, sequence = self._ended()
        content = [block.described() for block in self._blocks]
        return msgspec.json.encode(
            {
                **self._head,
                "content": content,
                "stop_reason": reason,
                "stop_sequence": sequence,
                "usage": self._usage(),
            }
        )

    def _start(self, answer: Answer) -> bytes:
        self._answer = answer
        begun: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": self._usage()}
        return _event("message_start", message={**self._head, **begun}) + PING

    def _grow(self, kind: type[Delta], names: bytes, text: str) -> bytes:
        """More of the open block if it is of that kind, else of a new one. `names`: the delta's type, and its field."""
        events = b""
        if not self._is_open or self._blocks[-1].kind is not kind:
            events = self._begin(kind, _TEXT if kind is Content else _THINKING)
        block = self._blocks[-1]
        block.texts.append(text)
        return events + _DELTA % (block.index, names, msgspec.json.encode(text))

    def _begin(self, kind: type[Delta], begun: dict[str, Any]) -> bytes:
        events = self._close()
        block = _Block(index=len(self._blocks), kind=kind, begun=begun)
        self._blocks.append(block)
        self._is_open = True
        return events + _event("content_block_start", index=block.index, content_block=begun)

    def _close(self) -> bytes:
        if not self._is_open:
            return b""
        self._is_open = False
        return _event("content_block_stop", index=len(self._blocks) - 1)

    def _ended(self) -> tuple[str, str | None]:
        """Why it ended, and the stop sequence that ended it. Reasons of ours where Anthropic has none."""
        last = None if self._answer is None else self._answer.last
        reason = FinishReason.ABORT if last is None or last.finish_reason is None else last.finish_reason
        if reason is FinishReason.STOP and last is not None and isinstance(last.stop_reason, str):
            return "stop_sequence", last.stop_reason
        if reason is FinishReason.STOP and any(block.kind is CallStart for block in self._blocks):
            return "tool_use", None
        known = _REASONS.get(reason)
        return known or ("max_tokens" if self._strict else str(reason)), None

    def _usage(self) -> dict[str, Any]:
        """Anthropic counts what the cache spared apart."""
        usage = usage_of([] if self._answer is None else [self._answer])
        cached = usage.prompt_tokens_details.cached_tokens
        details = usage.completion_tokens_details
        return {
            "input_tokens": usage.prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage.completion_tokens,
            **({"output_tokens_details": {"thinking_tokens": details.reasoning_tokens}} if details else {}),
        }


_TEXT = {"type": "text", "text": ""}
_THINKING = {"type": "thinking", "thinking": "", "signature": ""}
