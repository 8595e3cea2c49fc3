"""The items of a response's input as the messages of a chat.

Pure. What an assistant thought, said and called in one turn are several items there and one message here.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ...engine.core.errors import InvalidRequest
from ..messages import CalledFunction, Message, MessageToolCall

ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning")
TEXT_PARTS = ("input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text")
ROLES = ("user", "assistant", "system", "developer")


class Part(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A part of an item's content; only text can be read."""

    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One item: a message (the type when none is said), a call, what a call gave, or reasoning."""

    type: str | None = None
    id: str | None = None
    status: str | None = None
    role: Annotated[str, Meta(max_length=64)] | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    summary: list[Part] | None = None
    encrypted_content: str | None = None

    @property
    def kind(self) -> str:
        return self.type or "message"


def messages_of(items: list[InputItem], *, num_before: int) -> list[Message]:
    """The conversation. The first `num_before` items are stored ones; errors count from those that follow.

    Raises InvalidRequest naming the item's field.
    """
    writer = _Writer()
    for index, item in enumerate(items):
        writer.take(item, f"input[{index - num_before}]")
    writer.end_turn()
    return writer.messages


class _Turn:
    """What an assistant thinks, says and calls until somebody else speaks, or it speaks again."""

    def __init__(self) -> None:
        self.message = Message(role="assistant")
        self.thoughts: list[str] = []
        self.calls: list[MessageToolCall] = []

    @property
    def has_spoken(self) -> bool:
        return self.message.content is not None or bool(self.calls)

    def end(self) -> None:
        self.message.reasoning = "\n".join(self.thoughts) or None
        self.message.tool_calls = self.calls or None


class _Writer:
    """Joins items into messages, in time linear in what they hold."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._turn: _Turn | None = None
        self._names: dict[str, str] = {}
        """Of the functions that were called, by call."""

    def take(self, item: InputItem, where: str) -> None:
        match item.kind:
            case "message":
                self._message(item, where)
            case "reasoning":
                if text := _text(item.content, where + ".content") or _text(item.summary, where + ".summary"):
                    self._assistant(anew=self._has_spoken).thoughts.append(text)
            case "function_call":
                self._call(item, where)
            case "function_call_output":
                self._result(item, where)
            case _:
                raise InvalidRequest(
                    f"{where}.type must be one of {', '.join(ITEM_TYPES)}, not {item.kind[:64]!r}.",
                    param=f"{where}.type",
                )

    def _message(self, item: InputItem, where: str) -> None:
        if item.role not in ROLES:
            told = "is required" if item.role is None else f"must be one of {', '.join(ROLES)}, not {item.role[:64]!r}"
            raise InvalidRequest(f"{where}.role {told}.", param=f"{where}.role")
        text = _text(_required(item.content, f"{where}.content"), f"{where}.content")
        if item.role == "assistant":
            self._assistant(anew=self._has_spoken).message.content = text
        else:
            self._say(Message(role=item.role, content=text))

    def _call(self, item: InputItem, where: str) -> None:
        call_id = _required(item.call_id, f"{where}.call_id")
        name = _required(item.name, f"{where}.name")
        arguments = _required(item.arguments, f"{where}.arguments")
        check_arguments(arguments, f"{where}.arguments")
        call = MessageToolCall(id=call_id, function=CalledFunction(name=name, arguments=arguments))
        self._assistant().calls.append(call)
        self._names[call_id] = name

    def _result(self, item: InputItem, where: str) -> None:
        call_id = _required(item.call_id, f"{where}.call_id")
        if call_id not in self._names:
            raise InvalidRequest(
                f"{where}.call_id must be that of a function_call before it, not {call_id[:64]!r}.",
                param=f"{where}.call_id",
            )
        text = _text(_required(item.output, f"{where}.output"), f"{where}.output")
        self._say(Message(role="tool", content=text, tool_call_id=call_id, name=self._names[call_id]))

    def end_turn(self) -> None:
        if self._turn is not None:
            self._turn.end()
        self._turn = None

    @property
    def _has_spoken(self) -> bool:
        return self._turn is not None and self._turn.has_spoken

    def _say(self, message: Message) -> None:
        self.end_turn()
        self.messages.append(message)

    def _assistant(self, *, anew: bool = False) -> _Turn:
        """The assistant's open turn; with `anew` one that begins here."""
        if anew:
            self.end_turn()
        if self._turn is None:
            self._turn = _Turn()
            self.messages.append(self._turn.message)
        return self._turn


def check_arguments(arguments: str, where: str) -> None:
    """Raises InvalidRequest unless they are the text of an object."""
    try:
        msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest(f"{where} must be the text of a JSON object.", param=where) from None


def _required(value: Any, where: str) -> Any:
    if value is None:
        raise InvalidRequest(f"{where} is required.", param=where)
    return value


def _text(content: str | list[Part] | None, where: str) -> str:
    """One text; the parts of a list are joined by line ends."""
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for index, part in enumerate(content):
        if part.type not in TEXT_PARTS:
            raise InvalidRequest(
                f"{where}[{index}].type must be input_text, not {part.type[:64]!r}: only text can be read.",
                param=f"{where}[{index}].type",
            )
        field = "refusal" if part.type == "refusal" else "text"
        texts.append(_required(getattr(part, field), f"{where}[{index}].{field}"))
    return "\n".join(texts)
