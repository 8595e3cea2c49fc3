"""Items become the messages of a chat: an assistant's turn is one message, and what is malformed is named by place."""

from typing import Any

import msgspec
import pytest

from triolet.api.messages import template_messages
from triolet.api.responses.items import InputItem, messages_of
from triolet.api.responses.requests import MAX_ITEMS
from triolet.engine.core.errors import InvalidRequest


def items(*given: dict[str, Any]) -> list[InputItem]:
    return msgspec.convert(list(given), type=list[InputItem])


def read(*given: dict[str, Any], num_before: int = 0) -> list[dict[str, Any]]:
    """As a chat template reads them."""
    return list(template_messages(messages_of(items(*given), num_before=num_before)))


CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": "sky"}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "blue"}


def test_messages_of_all_roles_with_texts_and_parts() -> None:
    """The type may be missing; parts are joined by line ends."""
    assert read(
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": t} for t in ("a", "b")]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
    ) == [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c"},
    ]


def test_what_an_assistant_thought_said_and_called_is_one_message() -> None:
    """Its result is a tool's, with the function's name; afterwards a new message begins."""
    said = read(
        {"role": "user", "content": "What colour?"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"role": "assistant", "content": "I look."},
        CALL,
        {**CALL, "call_id": "c2", "arguments": ""},
        RESULT,
        {**RESULT, "call_id": "c2", "output": [{"type": "input_text", "text": "grey"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "So."}]},
        {"role": "assistant", "content": "Blue."},
        {"role": "assistant", "content": "Really."},
    )
    assert [message["role"] for message in said] == ["user", "assistant", "tool", "tool", "assistant", "assistant"]
    turn = said[1]
    assert (turn["reasoning"], turn["content"]) == ("Hm.", "I look.")
    assert [call["function"]["arguments"] for call in turn["tool_calls"]] == [{"at": "sky"}, {}]
    assert said[2] == {"role": "tool", "content": "blue", "name": "look", "tool_call_id": "c1"}
    assert (said[4]["reasoning"], said[4]["content"], said[5]["content"]) == ("So.", "Blue.", "Really.")


def test_many_items_of_one_turn_are_read_in_one_go() -> None:
    """As many as a request may hold: what they cost does not grow with what stands before them."""
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm. " * 50}]}
    said = messages_of(items(*[thought] * MAX_ITEMS, *[CALL] * MAX_ITEMS), num_before=0)
    (turn,) = said
    assert len(turn.reasoning or "") > 200 * MAX_ITEMS
    assert len(turn.tool_calls or ()) == MAX_ITEMS


@pytest.mark.parametrize(
    ("given", "param", "told"),
    [
        ({"type": "item_reference", "id": "x"}, "input[0].type", "must be one of message, function_call, "),
        ({"type": "computer_call"}, "input[0].type", "not 'computer_call'"),
        ({"content": "a"}, "input[0].role", "is required"),
        ({"role": "tool", "content": "a"}, "input[0].role", "must be one of user, assistant, system, developer"),
        ({"role": "user"}, "input[0].content", "is required"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[0].content[0].type", "only text can be read"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text", "is required"),
        ({**CALL, "arguments": "[1]"}, "input[0].arguments", "must be the text of a JSON object"),
        ({**CALL, "arguments": "{"}, "input[0].arguments", "must be the text of a JSON object"),
        ({**CALL, "name": None}, "input[0].name", "is required"),
        ({**CALL, "call_id": None}, "input[0].call_id", "is required"),
        (RESULT, "input[0].call_id", "must be that of a function_call before it, not 'c1'"),
    ],
)
def test_what_is_malformed_is_named(given: dict[str, Any], param: str, told: str) -> None:
    """By its place in the request."""
    with pytest.raises(InvalidRequest) as refused:
        read(given)
    assert refused.value.param == param
    assert told in refused.value.message


def test_places_count_from_the_request_itself() -> None:
    """What was stored before is not the client's to count."""
    with pytest.raises(InvalidRequest) as refused:
        read({"role": "user", "content": "stored"}, {"role": "user", "content": "sent"}, {"role": "x"}, num_before=1)
    assert refused.value.param == "input[1].role"
    assert read(CALL, RESULT, num_before=1)[1]["role"] == "tool"
