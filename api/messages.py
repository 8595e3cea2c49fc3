"""The messages of a chat: what clients send, and what the model's chat template reads."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..engine.core.errors import InvalidRequest

TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of parts that have a `text`."""


MAX_DEPTH = 100
"""Objects and lists within each other, in the arguments of a call: what writes them out again recurses."""


class ContentPart(msgspec.Struct, kw_only=True):
    """A part of a message's content; only text can be read."""

    type: str
    text: str | None = None
    refusal: str | None = None


class CalledFunction(msgspec.Struct, kw_only=True):
    """The function of a tool call; the arguments are JSON text, or its object."""

    name: str
    arguments: str | dict[str, Any] | None = None


class MessageToolCall(msgspec.Struct, kw_only=True):
    """A tool call that an assistant's message holds."""

    function: CalledFunction
    id: str | None = None
    type: str = "function"


class Message(msgspec.Struct, kw_only=True):
    """One turn of a chat: the system's (or developer's), the user's, the assistant's, or a tool's answer."""

    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


def template_messages(messages: list[Message], param: str = "messages") -> tuple[dict[str, Any], ...]:
    """Messages as a chat template reads them: the content one text, the parts of a list joined by line ends, and the
    arguments of tool calls as objects. Raises InvalidRequest naming the part."""
    if not messages:
        raise InvalidRequest(f"{param} must hold at least one message.", param=param)
    result: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        where = f"{param}[{index}]"
        entry: dict[str, Any] = {"role": message.role, "content": _text(message, f"{where}.content")}
        for name in ("name", "tool_call_id"):
            if (value := getattr(message, name)) is not None:
                entry[name] = value
        if (reasoning := message.reasoning or message.reasoning_content) is not None:
            entry["reasoning"] = reasoning
        if message.tool_calls:
            entry["tool_calls"] = [
                _tool_call(call, f"{where}.tool_calls[{place}]") for place, call in enumerate(message.tool_calls)
            ]
        result.append(entry)
    return tuple(result)


def _text(message: Message, param: str) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    if content is None:
        if message.role != "assistant":
            raise InvalidRequest(f"{param} is required.", param=param)
        return ""
    return "\n".join(_part(part, f"{param}[{index}]") for index, part in enumerate(content))


def _part(part: ContentPart, where: str) -> str:
    field = "refusal" if part.type == "refusal" else "text"
    if field == "text" and part.type not in TEXT_PARTS:
        raise InvalidRequest(
            f"{where}.type must be 'text', not {part.type[:64]!r}: only text can be read.", param=f"{where}.type"
        )
    text = part.refusal if field == "refusal" else part.text
    if text is None:
        raise InvalidRequest(f"{where}.{field} is required.", param=f"{where}.{field}")
    return text


def _is_deep(value: Any) -> bool:
    """Deeper than MAX_DEPTH. A stack, not recursion: the client chooses the depth."""
    stack = [(value, 1)]
    while stack:
        inner, depth = stack.pop()
        if isinstance(inner, dict | list):
            if depth > MAX_DEPTH:
                return True
            stack += [(each, depth + 1) for each in (inner.values() if isinstance(inner, dict) else inner)]
    return False


def _tool_call(call: MessageToolCall, where: str) -> dict[str, Any]:
    arguments: Any = call.function.arguments
    param = f"{where}.function.arguments"
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            raise InvalidRequest(f"{param} must be the text of a JSON object.", param=param) from None
    if _is_deep(arguments):
        raise InvalidRequest(f"{param} may be nested {MAX_DEPTH} deep.", param=param)
    function = {"name": call.function.name, "arguments": arguments or {}}
    return {"id": call.id, "type": call.type, "function": function}
