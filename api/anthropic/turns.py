"""Anthropic's turns as the messages of a chat.

Pure. A user's turn may hold results of tools, which are messages of their own here; an assistant's thinking, text and
calls are one message in both.
"""

from typing import Any

import msgspec

from ...engine.core.errors import InvalidRequest
from ..messages import CalledFunction, Message, MessageToolCall

ROLES = ("user", "assistant", "system")
USER_BLOCKS = ("text", "tool_result")
ASSISTANT_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use")


class Block(msgspec.Struct, kw_only=True):
    """A block of a turn's content. `cache_control` and citations are without effect."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: "str | list[Block] | None" = None
    is_error: bool | None = None


class Turn(msgspec.Struct, kw_only=True):
    """One turn of the conversation."""

    role: str
    content: str | list[Block]


def messages_of(turns: list[Turn], system: str | list[Block] | None) -> list[Message]:
    """The conversation, the system's message first. Raises InvalidRequest naming the block's field."""
    if not turns:
        raise InvalidRequest("messages must hold at least one message.", param="messages")
    messages: list[Message] = []
    if system:
        messages.append(Message(role="system", content=_texts(system, "system")))
    names: dict[str, str] = {}
    for index, turn in enumerate(turns):
        where = f"messages[{index}]"
        match turn.role:
            case "user":
                messages += _user(turn, names, where)
            case "assistant":
                messages.append(_assistant(turn, names, where))
            case "system":
                messages.append(Message(role="system", content=_texts(turn.content, f"{where}.content")))
            case _:
                raise InvalidRequest(
                    f"{where}.role must be one of {', '.join(ROLES)}, not {turn.role[:64]!r}.", param=f"{where}.role"
                )
    if messages[-1].tool_calls:
        where = f"messages[{len(turns) - 1}].content"
        raise InvalidRequest(f"{where} calls tools: the next message must hold their results.", param=where)
    return messages


def _user(turn: Turn, names: dict[str, str], where: str) -> list[Message]:
    """Texts that stand together are one message; so is each result."""
    if isinstance(turn.content, str):
        return [Message(role="user", content=turn.content)]
    messages: list[Message] = []
    texts: list[str] = []
    for index, block in enumerate(turn.content):
        place = f"{where}.content[{index}]"
        match block.type:
            case "text":
                texts.append(_required(block.text, f"{place}.text"))
            case "tool_result":
                if texts:
                    messages.append(Message(role="user", content="\n".join(texts)))
                    texts = []
                messages.append(_result(block, names, place))
            case _:
                raise _wrong_type(block, place, USER_BLOCKS)
    if texts or not messages:
        messages.append(Message(role="user", content="\n".join(texts)))
    return messages


def _result(block: Block, names: dict[str, str], where: str) -> Message:
    call = _required(block.tool_use_id, f"{where}.tool_use_id")
    if call not in names:
        raise InvalidRequest(
            f"{where}.tool_use_id must be that of a tool_use before it, not {call[:64]!r}.",
            param=f"{where}.tool_use_id",
        )
    text = "" if block.content is None else _texts(block.content, f"{where}.content")
    if block.is_error:
        text = f"Error: {text}"
    return Message(role="tool", content=text, tool_call_id=call, name=names[call])


def _assistant(turn: Turn, names: dict[str, str], where: str) -> Message:
    if isinstance(turn.content, str):
        return Message(role="assistant", content=turn.content)
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[MessageToolCall] = []
    for index, block in enumerate(turn.content):
        place = f"{where}.content[{index}]"
        match block.type:
            case "text":
                texts.append(_required(block.text, f"{place}.text"))
            case "thinking":
                thoughts.append(_required(block.thinking, f"{place}.thinking"))
            case "redacted_thinking":
                pass  # Nobody here can read it.
            case "tool_use":
                call, name = _required(block.id, f"{place}.id"), _required(block.name, f"{place}.name")
                names[call] = name
                function = CalledFunction(name=name, arguments=_required(block.input, f"{place}.input"))
                calls.append(MessageToolCall(id=call, function=function))
            case _:
                raise _wrong_type(block, place, ASSISTANT_BLOCKS)
    return Message(
        role="assistant",
        content="\n".join(texts),
        reasoning="\n".join(thoughts) or None,
        tool_calls=calls or None,
    )


def _texts(content: str | list[Block], where: str) -> str:
    """Of blocks that may be text alone."""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for index, block in enumerate(content):
        if block.type != "text":
            raise _wrong_type(block, f"{where}[{index}]", ("text",))
        texts.append(_required(block.text, f"{where}[{index}].text"))
    return "\n".join(texts)


def _wrong_type(block: Block, where: str, known: tuple[str, ...]) -> InvalidRequest:
    return InvalidRequest(
        f"{where}.type must be {' or '.join(known)}, not {block.type[:64]!r}: only text can be read.",
        param=f"{where}.type",
    )


def _required(value: Any, where: str) -> Any:
    if value is None:
        raise InvalidRequest(f"{where} is required.", param=where)
    return value
