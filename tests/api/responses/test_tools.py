"""Calls of functions and reasoning as items and events, and tools as this API has them."""

from typing import Any

import pytest

from tests.api.fake_engine import FakeEngine
from tests.api.rig import error_of, serving
from triolet.engine.core.events import FinishReason

from .asking import asked, events_of

PATH = "/v1/responses"
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
POINT = {"type": "function", "name": "point", "description": "With a finger."}
CALLS = ["I look.", '<tool_call>{"name": "look", "argum', 'ents": {"at": "s', 'ky"}}</tool_call>']
CALLS += ['<tool_call>{"name": "point", "arguments": {}}</tool_call>']


def thinking() -> FakeEngine:
    """A model that thinks, speaks, and calls."""
    engine = FakeEngine(pieces=[*"<think>Hm, so.</think>", *CALLS])
    engine.tokenizer.template = "{% if '</think>' in content %}<tool_call>{{ tools }}"
    return engine


async def test_reasoning_text_and_calls_are_items() -> None:
    """In their order, each with an id; the arguments are text; reasoning is counted; a stream gives the same."""
    async with serving(thinking()) as rig:
        body = (await rig.post(PATH, asked(tools=[LOOK, POINT]))).json()
        assert [item["type"] for item in body["output"]] == ["reasoning", "message", "function_call", "function_call"]
        thought, said, look, point = body["output"]
        assert thought["content"] == [{"type": "reasoning_text", "text": "Hm, so."}]
        assert thought["summary"] == []
        assert said["content"][0]["text"].strip() == "I look."
        assert (look["name"], look["arguments"], look["status"]) == ("look", '{"at": "sky"}', "completed")
        assert (point["name"], point["arguments"]) == ("point", "{}")
        assert look["call_id"] != point["call_id"]
        assert body["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
        assert body["status"] == "completed"
        assert body["tools"][0]["name"] == "look"
        events = events_of((await rig.post(PATH, asked(tools=[LOOK, POINT], stream=True))).text)
        streamed = events[-1]["response"]["output"]
        for item, other in zip(streamed, body["output"], strict=True):
            names = item.keys() - {"id", "call_id"}
            assert {name: item[name] for name in names} == {name: other[name] for name in names}
        assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == streamed


async def test_the_events_of_reasoning_and_calls() -> None:
    """Each kind has its own deltas and ends; arguments come in pieces and add up."""
    async with serving(thinking()) as rig:
        events = events_of((await rig.post(PATH, asked(tools=[LOOK, POINT], stream=True))).text)
        kinds = [event["type"].removeprefix("response.") for event in events]
        rest = [kind for before, kind in zip(["", *kinds], kinds, strict=False) if kind != before]
        part = ["content_part.added", "{}.delta", "{}.done", "content_part.done"]
        call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done"]
        assert rest == [
            "created",
            "in_progress",
            "output_item.added",
            *[kind.format("reasoning_text") for kind in part],
            "output_item.done",
            "output_item.added",
            *[kind.format("output_text") for kind in part],
            "output_item.done",
            *call,
            "output_item.done",
            *call,
            "output_item.done",
            "completed",
        ]
        pieces = [event for event in events if event["type"] == "response.function_call_arguments.delta"]
        assert len(pieces) > 2
        for index, arguments in ((2, '{"at": "sky"}'), (3, "{}")):
            assert "".join(event["delta"] for event in pieces if event["output_index"] == index) == arguments
            (done,) = (
                event
                for event in events
                if event["type"] == "response.function_call_arguments.done" and event["output_index"] == index
            )
            assert done["arguments"] == arguments
        added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
        assert (added[2]["arguments"], added[2]["status"]) == ("", "in_progress")


async def test_a_conversation_with_calls_goes_on() -> None:
    """The stored turn is one message of the assistant; the result is the tool's."""
    engine = thinking()
    async with serving(engine) as rig:
        first = (await rig.post(PATH, asked(tools=[LOOK, POINT]))).json()
        result = {"type": "function_call_output", "call_id": first["output"][2]["call_id"], "output": "blue"}
        more = asked(input=[result], previous_response_id=first["id"], tools=[LOOK])
        assert (await rig.post(PATH, more)).status_code == 200
        said = engine.seen[1].prompt.messages  # type: ignore[union-attr]
        assert [message["role"] for message in said] == ["user", "assistant", "tool"]
        assert said[1]["reasoning"] == "Hm, so."
        assert [call["function"]["name"] for call in said[1]["tool_calls"]] == ["look", "point"]
        assert said[2]["content"] == "blue"
        result["call_id"] = "call_other"
        error = error_of(await rig.post(PATH, more))
        assert error["param"] == "input[0].call_id"


async def test_a_call_that_is_cut_off() -> None:
    """Is incomplete, with its arguments so far."""
    engine = FakeEngine(pieces=CALLS[1:3])
    engine.finish_reason = FinishReason.LENGTH
    async with serving(engine) as rig:
        body = (await rig.post(PATH, asked(tools=[LOOK]))).json()
        (item,) = body["output"]
        assert (body["status"], item["status"], item["arguments"]) == ("incomplete", "incomplete", '{"at": "s')


async def test_log_probabilities_are_those_of_text() -> None:
    """Of reasoning and calls there are none; what was held back is told with the text that follows."""
    engine = thinking()
    async with serving(engine) as rig:
        events = events_of((await rig.post(PATH, asked(tools=[LOOK, POINT], top_logprobs=1, stream=True))).text)
        with_some = {event["type"] for event in events if event.get("logprobs")}
        assert with_some == {"response.output_text.delta", "response.output_text.done"}


@pytest.mark.parametrize("tools", [None, []])
async def test_without_tools_a_call_is_text(tools: Any) -> None:
    """An empty list is none."""
    async with serving(FakeEngine(pieces=CALLS)) as rig:
        body = (await rig.post(PATH, asked(tools=tools))).json()
        (item,) = body["output"]
        assert item["content"][0]["text"] == "".join(CALLS)


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (None, ["look", "point"]),
        ("auto", ["look", "point"]),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "point"}]}, ["point"]),
    ],
)
async def test_the_model_is_told_of_the_tools_that_it_may_call(choice: Any, names: list[str]) -> None:
    """All of them, or those that are allowed."""
    engine = thinking()
    async with serving(engine) as rig:
        assert (await rig.post(PATH, asked(tools=[LOOK, POINT], tool_choice=choice))).status_code == 200
        assert [tool["function"]["name"] for tool in engine.seen[0].prompt.tools] == names  # type: ignore[union-attr]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "look"}])
async def test_a_call_that_is_demanded_is_enforced(choice: Any) -> None:
    """By a constraint on the answer."""
    async with serving() as rig:
        await rig.post(PATH, asked(tools=[LOOK], tool_choice=choice, parallel_tool_calls=False))
        assert rig.engine.seen[0].params.grammar is not None


async def test_an_effort_is_the_templates() -> None:
    """`reasoning.effort` is passed on, and given back."""
    async with serving() as rig:
        body = (await rig.post(PATH, asked(reasoning={"effort": "low", "summary": "auto"}))).json()
        assert body["reasoning"] == {"effort": "low", "summary": None}
        assert rig.engine.seen[0].prompt.template_kwargs == {"reasoning_effort": "low"}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fields", "param", "told"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "only functions can be called"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "is required"),
        ({"tools": [{**LOOK, "name": "a b"}]}, "tools[0].name", "letters, digits"),
        ({"tools": [LOOK, LOOK]}, "tools[1].name", "another function"),
        ({"tools": [{**LOOK, "parameters": {"type": 5}}]}, "tools[0].parameters.type", "tools[0].parameters.type"),
        ({"tool_choice": "required"}, "tool_choice", "only allowed together with tools"),
        ({"tools": [LOOK], "tool_choice": "maybe"}, "tool_choice", "must be one of"),
        ({"tools": [LOOK], "tool_choice": {"type": "function"}}, "tool_choice.name", "is required"),
        ({"tools": [LOOK], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name", "one of the tools"),
        ({"tools": [LOOK], "tool_choice": {"type": "mcp"}}, "tool_choice.type", "function or allowed_tools"),
        ({"tools": [LOOK], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.mode", "must be one of"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [LOOK]}},
            "tool_choice.tools[0]",
            "must name one of the tools",
        ),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort", "reasoning.effort"),
        ({"thinking_token_budget": 5}, "thinking_token_budget", "marks its reasoning"),
    ],
)
async def test_what_is_refused_is_named(fields: dict[str, Any], param: str, told: str) -> None:
    """As this API calls it."""
    async with serving() as rig:
        response = await rig.post(PATH, asked(**fields))
        error = error_of(response)
        assert (response.status_code, error["param"]) == (400, param)
        assert told in error["message"]
        assert "function.name" not in error["message"]
        assert not rig.engine.seen
