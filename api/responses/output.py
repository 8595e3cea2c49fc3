"""What a response says: its output items, and the events that tell of them while they grow.

Pure. Items come one after the other: reasoning, messages, calls of functions. Whoever reads the answer calls
`reasoning`, `text`, `call` and `arguments` in the order of the text, and `end` once; each gives the events to send.
"""

import uuid
from functools import cached_property
from typing import Any, ClassVar

import attrs
import msgspec


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


class Events:
    """Numbers the events of a response."""

    def __init__(self) -> None:
        self._number = 0

    def event(self, type_: str, **fields: Any) -> bytes:
        body = msgspec.json.encode({"type": type_, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (type_.encode(), body)

    def delta(self, head: bytes, text: str, more: bytes) -> bytes:
        """More text of an item, whose events of that kind begin with `head` (`delta_head`)."""
        number, self._number = self._number, self._number + 1
        return b'%b%d%b,"delta":%b}\n\n' % (head, number, more, msgspec.json.encode(text))


def delta_head(type_: str) -> bytes:
    """The beginning of the many events that have text, up to their number: made once for an item."""
    return b'event: %b\ndata: {"type":"%b","sequence_number":' % (type_.encode(), type_.encode())


@attrs.define(kw_only=True, slots=False)
class Item:
    """An item of the output; the last one may still grow."""

    DELTA: ClassVar[bytes]
    """How the events of its text begin."""

    index: int
    id: str
    texts: list[str] = attrs.field(factory=list)
    status: str = "in_progress"

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @cached_property
    def place(self) -> bytes:
        """What those events say behind their number."""
        part = b"" if isinstance(self, CallItem) else b',"content_index":0'
        return b',"item_id":"%b","output_index":%d%b' % (self.id.encode(), self.index, part)


@attrs.define(kw_only=True, slots=False)
class MessageItem(Item):
    """What is said to the client: one part of text."""

    DELTA = delta_head("response.output_text.delta")

    logprobs: list[bytes] = attrs.field(factory=list)
    """Entries as JSON, without brackets around them."""

    def described(self) -> dict[str, Any]:
        content = [self.part()] if self.texts or self.status != "in_progress" else []
        return {"id": self.id, "type": "message", "role": "assistant", "status": self.status, "content": content}

    def part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.all_logprobs()}

    def all_logprobs(self) -> msgspec.Raw:
        return msgspec.Raw(b"[" + b",".join(self.logprobs) + b"]")


@attrs.define(kw_only=True, slots=False)
class ReasoningItem(Item):
    """What the model thought before it answered."""

    DELTA = delta_head("response.reasoning_text.delta")

    def described(self) -> dict[str, Any]:
        content = [self.part()] if self.texts or self.status != "in_progress" else []
        return {"id": self.id, "type": "reasoning", "status": self.status, "summary": [], "content": content}

    def part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self.text}


@attrs.define(kw_only=True, slots=False)
class CallItem(Item):
    """A function that the client is to call; its texts are the arguments."""

    DELTA = delta_head("response.function_call_arguments.delta")

    name: str
    call_id: str

    def described(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function_call",
            "status": self.status,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.text,
        }


AnyItem = MessageItem | ReasoningItem | CallItem


class Output:
    """The items of one response."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._items: list[AnyItem] = []
        self._open: AnyItem | None = None

    def described(self) -> list[dict[str, Any]]:
        """All items as they are now."""
        return [item.described() for item in self._items]

    def reasoning(self, text: str) -> bytes:
        item, events = self._opened(ReasoningItem)
        item.texts.append(text)
        return events + self._events.delta(item.DELTA, text, item.place)

    @property
    def is_text(self) -> bool:
        """What comes last is text, or nothing has come."""
        return isinstance(self._open, MessageItem) or not self._items

    def text(self, text: str, entries: bytes = b"") -> bytes:
        """`entries`: the log-probabilities of the text's tokens, JSON without brackets around them."""
        item, events = self._opened(MessageItem)
        item.texts.append(text)
        if entries:
            item.logprobs.append(entries)
        return events + self._events.delta(item.DELTA, text, b'%b,"logprobs":[%b]' % (item.place, entries))

    def call(self, name: str, call_id: str) -> bytes:
        """A call begins; its arguments follow."""
        events = self._close("completed")
        item = CallItem(index=len(self._items), id=new_id("fc"), name=name, call_id=call_id)
        return events + self._added(item)

    def arguments(self, text: str) -> bytes:
        """Of the call that is open."""
        item = self._open
        assert isinstance(item, CallItem)
        item.texts.append(text)
        return self._events.delta(item.DELTA, text, item.place)

    def end(self, status: str) -> bytes:
        """Nothing follows. `status`: whether what is open was said to its end. Somebody who said nothing said ""."""
        events = b""
        if not self._items and status == "completed":
            _, events = self._opened(MessageItem)
        return events + self._close(status)

    def _opened(self, kind: "type[Any]") -> tuple[Any, bytes]:
        """The open item if it is of that kind, else a new one and the events in between."""
        if isinstance(self._open, kind):
            return self._open, b""
        events = self._close("completed")
        item = kind(index=len(self._items), id=new_id("msg" if kind is MessageItem else "rs"))
        events += self._added(item)
        return item, events + self._part("added", item)

    def _added(self, item: AnyItem) -> bytes:
        self._items.append(item)
        self._open = item
        return self._events.event("response.output_item.added", output_index=item.index, item=item.described())

    def _part(self, what: str, item: MessageItem | ReasoningItem) -> bytes:
        return self._events.event(
            f"response.content_part.{what}",
            item_id=item.id,
            output_index=item.index,
            content_index=0,
            part=item.part(),
        )

    def _close(self, status: str) -> bytes:
        item, self._open = self._open, None
        if item is None:
            return b""
        item.status = status
        where: dict[str, Any] = {"item_id": item.id, "output_index": item.index}
        event = self._events.event
        match item:
            case CallItem():
                events = event("response.function_call_arguments.done", **where, name=item.name, arguments=item.text)
            case ReasoningItem():
                events = event("response.reasoning_text.done", **where, content_index=0, text=item.text)
                events += self._part("done", item)
            case MessageItem():
                told = {"text": item.text, "logprobs": item.all_logprobs()}
                events = event("response.output_text.done", **where, content_index=0, **told)
                events += self._part("done", item)
        return events + event("response.output_item.done", output_index=item.index, item=item.described())
