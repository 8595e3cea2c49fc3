"""Anthropic's turns become the messages of a chat, and what is malformed is named by place."""

from typing import Any

import msgspec
import pytest

from triolet.api.anthropic.turns import Turn, messages_of
from triolet.api.messages import template_messages
from triolet.engine.core.errors import InvalidRequest


def read(*turns: tuple[str, Any], system: Any = None) -> list[dict[str, Any]]:
    """As a chat template reads them."""
    given = msgspec.convert([{"role": role, "content": content} for role, content in turns], type=list[Turn])
    return list(template_messages(messages_of(given, system)))


def text(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": each, "cache_control": {"type": "ephemeral"}} for each in texts]


USE = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "sky"}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "blue"}


def test_texts_and_the_system() -> None:
    """Blocks of text that stand together are joined by line ends; an empty system is none."""
    assert read(("user", text("a", "b")), ("assistant", text("c")), ("system", "d"), ("user", [])) == [
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c"},
        {"role": "system", "content": "d"},
        {"role": "user", "content": ""},
    ]
    turns = msgspec.convert([{"role": "user", "content": "a"}], type=list[Turn])
    assert [message.role for message in messages_of(turns, "Be brief.")] == ["system", "user"]
    assert [message.role for message in messages_of(turns, "")] == ["user"]


def test_thinking_calls_and_results() -> None:
    """An assistant's turn is one message; each result is one of the tool, an error says so, texts keep their place."""
    said = read(
        ("user", "What colour?"),
        ("assistant", [{"type": "thinking", "thinking": "Hm.", "signature": "x"}, *text("I look."), USE]),
        ("user", [RESULT, {**RESULT, "content": text("no", "sky"), "is_error": True}, *text("Well?")]),
        ("assistant", [{"type": "redacted_thinking", "data": "x"}, *text("Blue.")]),
        ("user", [*text("And now?")]),
    )
    assert [message["role"] for message in said] == ["user", "assistant", "tool", "tool", "user", "assistant", "user"]
    turn = said[1]
    assert (turn["reasoning"], turn["content"]) == ("Hm.", "I look.")
    assert turn["tool_calls"][0]["function"] == {"name": "look", "arguments": {"at": "sky"}}
    assert said[2] == {"role": "tool", "content": "blue", "name": "look", "tool_call_id": "t1"}
    assert said[3]["content"] == "Error: no\nsky"
    assert "reasoning" not in said[5]


@pytest.mark.parametrize(
    ("turns", "param", "told"),
    [
        ([], "messages", "at least one message"),
        ([("tool", "a")], "messages[0].role", "must be one of user, assistant, system, not 'tool'"),
        ([("user", [{"type": "image"}])], "messages[0].content[0].type", "only text can be read"),
        ([("user", [USE])], "messages[0].content[0].type", "must be text or tool_result"),
        ([("assistant", [RESULT])], "messages[0].content[0].type", "not 'tool_result'"),
        ([("user", [{"type": "text"}])], "messages[0].content[0].text", "is required"),
        ([("user", [RESULT])], "messages[0].content[0].tool_use_id", "that of a tool_use before it, not 't1'"),
        ([("user", [{"type": "tool_result"}])], "messages[0].content[0].tool_use_id", "is required"),
        ([("assistant", [{**USE, "input": None}])], "messages[0].content[0].input", "is required"),
        ([("assistant", [{"type": "thinking"}])], "messages[0].content[0].thinking", "is required"),
        ([("user", "a"), ("assistant", [USE])], "messages[1].content", "must hold their results"),
        (
            [("assistant", [USE]), ("user", [{**RESULT, "content": [{"type": "image"}]}])],
            "messages[1].content[0].content[0].type",
            "only text can be read",
        ),
    ],
)
def test_what_is_malformed_is_named(turns: list[tuple[str, Any]], param: str, told: str) -> None:
    """By its place."""
    with pytest.raises(InvalidRequest) as refused:
        read(*turns)
    assert refused.value.param == param
    assert told in refused.value.message
