"""Reasoning over HTTP: apart from content, counted, left out where it is not wanted, and held to its budget."""

from typing import Any

import pytest

from triolet.engine.prompt import ChatPrompt

from .fake_engine import FakeEngine
from .rig import chat, events_of, serving

CHAT = "/v1/chat/completions"
TEMPLATE = "{{ tools }}<tool_call>{{ enable_thinking }}</think>"
TEXT = "<think>\nHm.\n</think>\n\nYes."
CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
NOW = {"type": "function", "function": {"name": "now"}}


async def ask(text: str, **fields: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The body of a plain answer, and a stream's events."""
    async with serving(FakeEngine(pieces=list(text))) as rig:
        rig.engine.tokenizer.template = TEMPLATE
        plain = (await rig.post(CHAT, chat(**fields))).json()
        streamed = await rig.post(CHAT, chat(**fields, stream=True, stream_options={"include_usage": True}))
    return plain, events_of(streamed.text)


def joined(events: list[dict[str, Any]], name: str) -> str:
    return "".join(event["choices"][0]["delta"].get(name, "") for event in events if event["choices"])


async def test_reasoning_has_fields_of_its_own() -> None:
    """By both of its names, plain and streamed; and its tokens are counted, without the marks."""
    plain, events = await ask(TEXT)
    message = plain["choices"][0]["message"]
    assert message["content"] == joined(events, "content") == "Yes."
    for name in ("reasoning", "reasoning_content"):
        assert message[name] == joined(events, name) == "Hm."
    details = plain["usage"]["completion_tokens_details"]
    assert details == events[-1]["usage"]["completion_tokens_details"]
    # The fake engine's tokens are characters, and so are its marks; "\n" twice, and the closing mark.
    assert details == {"reasoning_tokens": len("\nHm.\n</think>")}


async def test_reasoning_can_be_left_out() -> None:
    """With its tokens; the usage counts them all the same."""
    plain, events = await ask(TEXT, include_reasoning=False, logprobs=True, return_token_ids=True)
    choice = plain["choices"][0]
    assert choice["message"]["content"] == joined(events, "content") == "Yes."
    assert choice["message"]["reasoning"] is None
    assert joined(events, "reasoning") == ""
    assert "".join(map(chr, choice["token_ids"])) == "\n\nYes."
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == "\n\nYes."
    assert plain["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


async def test_calls_come_behind_the_reasoning() -> None:
    """One in the reasoning is none."""
    plain, events = await ask(f"<think>{CALL}</think>{CALL}", tools=[NOW])
    choice = plain["choices"][0]
    assert choice["message"]["reasoning"] == joined(events, "reasoning") == CALL
    assert choice["message"]["content"] is None
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["now"]
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("fields", "kwargs"),
    [
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
    ],
)
async def test_the_template_is_told_how_much_to_think(fields: dict[str, Any], kwargs: dict[str, Any]) -> None:
    """An effort of none also in Qwen's way."""
    async with serving() as rig:
        assert (await rig.post(CHAT, chat(**fields))).status_code == 200
        prompt = rig.engine.seen[0].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.variables == kwargs


async def test_the_engine_is_told_of_a_budget_and_of_what_holds_behind_the_reasoning() -> None:
    """Of neither there is nothing to tell; -1 is no budget."""
    bodies = [
        {},
        {"thinking_token_budget": -1},
        {"thinking_token_budget": 5},
        {"response_format": {"type": "json_object"}},
        {"tools": [NOW], "tool_choice": "required"},
    ]
    async with serving() as rig:
        rig.engine.tokenizer.template = TEMPLATE
        for body in bodies:
            assert (await rig.post(CHAT, chat(**body))).status_code == 200
        assert (await rig.post("/v1/completions", {"prompt": "x", "thinking_token_budget": 3})).status_code == 200
        told = [seen.params.thinking for seen in rig.engine.seen]
    assert told[:2] == [None, None]
    assert [thinking and thinking.budget for thinking in told[2:]] == [5, None, None, 3]
    assert told[2] is not None
    assert told[2].end_token_ids == tuple(map(ord, "</think>"))


@pytest.mark.parametrize(
    ("begun", "reasoning", "content"), [("<think>Hm", "Hm.\n", None), ("<think>a</think>So: ", None, "Hm.\n")]
)
async def test_an_answer_goes_on_where_its_message_stops(begun: str, reasoning: str | None, content: str) -> None:
    """Inside the reasoning of the message, or behind it."""
    async with serving(FakeEngine(pieces=["Hm.\n"])) as rig:
        rig.engine.tokenizer.template = TEMPLATE
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": begun}]
        body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
        message = (await rig.post(CHAT, body)).json()["choices"][0]["message"]
    assert message["content"] == content
    assert message["reasoning"] == (reasoning and reasoning.strip())


async def test_where_the_prompt_has_closed_the_reasoning_a_mark_is_text() -> None:
    """And there is no reasoning to count."""
    async with serving(FakeEngine(pieces=list("<think>a</think>b"))) as rig:
        rig.engine.tokenizer.template = TEMPLATE
        messages = [{"role": "assistant", "content": "<think></think>"}]
        body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
        answer = (await rig.post(CHAT, body)).json()
    assert answer["choices"][0]["message"]["content"] == "<think>a</think>b"
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


async def test_the_parser_of_reasoning_is_named_or_turned_off_by_a_flag() -> None:
    """DeepSeek's thinks from the first token on."""
    for name, reasoning, content in (("deepseek_r1", "Hm.", "Yes."), ("none", None, "Hm.</think>Yes.")):
        async with serving(FakeEngine(pieces=["Hm.</think>Yes."]), reasoning_parser=name) as rig:
            rig.engine.tokenizer.template = TEMPLATE
            message = (await rig.post(CHAT, chat())).json()["choices"][0]["message"]
        assert (message.get("reasoning"), message["content"]) == (reasoning, content)
