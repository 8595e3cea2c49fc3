"""Tools and thinking as blocks and events, and as this API asks for them."""

from typing import Any

import pytest

from tests.api.fake_engine import FakeEngine
from tests.api.rig import error_of, serving
from triolet.api.anthropic.message import UNPARSED
from triolet.engine.core.events import FinishReason

from .test_route import PATH, asked, events_of

LOOK = {"name": "look", "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}}
POINT = {"name": "point", "type": "custom", "description": "With a finger.", "input_schema": {"type": "object"}}
CALLS = ["I look.", '<tool_call>{"name": "look", "argum', 'ents": {"at": "s', 'ky"}}</tool_call>']
CALLS += ['<tool_call>{"name": "point", "arguments": {}}</tool_call>']


def thinking() -> FakeEngine:
    """A model that thinks, speaks, and calls."""
    engine = FakeEngine(pieces=[*"<think>Hm, so.</think>", *CALLS])
    engine.tokenizer.template = "{% if '</think>' in content %}<tool_call>{{ tools }}"
    return engine


async def test_thinking_text_and_calls_are_blocks() -> None:
    """In their order; inputs are objects; the answer says that it calls; thinking is counted."""
    async with serving(thinking()) as rig:
        fields = {"tools": [LOOK, POINT], "thinking": {"type": "adaptive"}}
        body = (await rig.post(PATH, asked(**fields))).json()
        thought, said, look, point = body["content"]
        assert thought == {"type": "thinking", "thinking": "Hm, so.", "signature": ""}
        assert said["text"].strip() == "I look."
        assert (look["type"], look["name"], look["input"]) == ("tool_use", "look", {"at": "sky"})
        assert (point["name"], point["input"]) == ("point", {})
        assert look["id"] != point["id"]
        assert body["stop_reason"] == "tool_use"
        assert body["usage"]["output_tokens_details"]["thinking_tokens"] > 0


async def test_their_events() -> None:
    """Every block begins, grows by deltas of its own kind, and ends before the next."""
    async with serving(thinking()) as rig:
        events = events_of((await rig.post(PATH, asked(tools=[LOOK, POINT], stream=True))).text)
        kinds = [
            (event["type"].removeprefix("content_block_"), event["index"], event.get("delta", {}).get("type"))
            for event in events
            if event["type"].startswith("content_block_")
        ]
        distinct = [kind for before, kind in zip([None, *kinds], kinds, strict=False) if kind != before]
        assert distinct == [
            step
            for index, delta in enumerate(("thinking_delta", "text_delta", "input_json_delta", "input_json_delta"))
            for step in (("start", index, None), ("delta", index, delta), ("stop", index, None))
        ]
        starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
        assert (starts[2]["name"], starts[2]["input"]) == ("look", {})
        pieces = [event["delta"] for event in events if event.get("index") == 2 and "delta" in event]
        assert len(pieces) > 1
        assert "".join(piece["partial_json"] for piece in pieces) == '{"at": "sky"}'
        assert events[-2]["delta"]["stop_reason"] == "tool_use"


async def test_a_call_that_is_cut_off() -> None:
    """Shows its text so far: it is no object yet."""
    engine = FakeEngine(pieces=CALLS[1:3])
    engine.finish_reason = FinishReason.LENGTH
    async with serving(engine) as rig:
        body = (await rig.post(PATH, asked(tools=[LOOK]))).json()
        assert body["content"][0]["input"] == {UNPARSED: '{"at": "s'}
        assert body["stop_reason"] == "max_tokens"


async def test_results_go_back() -> None:
    """A call and its result as the template reads them."""
    use = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "sky"}}
    turns = [
        {"role": "user", "content": "Look!"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "blue"}]},
    ]
    engine = thinking()
    async with serving(engine) as rig:
        assert (await rig.post(PATH, asked(messages=turns, tools=[LOOK]))).status_code == 200
        prompt: Any = engine.seen[0].prompt
        assert [message["role"] for message in prompt.messages] == ["user", "assistant", "tool"]
        assert prompt.tools[0]["function"]["name"] == "look"
        count = await rig.post(PATH + "/count_tokens", {"messages": turns, "tools": [LOOK]})
        assert count.json()["input_tokens"] > 0


@pytest.mark.parametrize(
    ("choice", "enforced"),
    [({"type": "auto"}, False), ({"type": "any"}, True), ({"type": "tool", "name": "look"}, True)],
)
async def test_a_call_that_is_demanded_is_enforced(choice: Any, enforced: bool) -> None:
    """By a constraint on the answer; a named tool that is called is still a tool_use."""
    async with serving(FakeEngine(pieces=CALLS[1:4])) as rig:
        body = (await rig.post(PATH, asked(tools=[LOOK], tool_choice=choice))).json()
        assert (rig.engine.seen[0].params.grammar is not None) == enforced
        assert body["stop_reason"] == "tool_use"


async def test_a_choice_of_none_hides_the_tools() -> None:
    """What looks like a call is text then; so is a second call where parallel use is disabled."""
    async with serving(FakeEngine(pieces=CALLS)) as rig:
        body = (await rig.post(PATH, asked(tools=[LOOK], tool_choice={"type": "none"}))).json()
        assert [block["type"] for block in body["content"]] == ["text"]
        alone = {"type": "auto", "disable_parallel_tool_use": True}
        body = (await rig.post(PATH, asked(tools=[LOOK, POINT], tool_choice=alone))).json()
        assert [block["type"] for block in body["content"]].count("tool_use") == 1


async def test_thinking_is_asked_for() -> None:
    """A budget and an effort are passed on; omitted, it is not shown."""
    engine = thinking()
    async with serving(engine) as rig:
        enabled = {"type": "enabled", "budget_tokens": 7, "display": "omitted"}
        body = (await rig.post(PATH, asked(thinking=enabled, output_config={"effort": "low"}))).json()
        assert body["content"][0]["type"] == "text"
        params, prompt = engine.seen[0].params, engine.seen[0].prompt
        assert params.thinking is not None
        assert params.thinking.budget == 7
        assert prompt.template_kwargs == {"enable_thinking": True, "reasoning_effort": "low"}  # type: ignore[union-attr]


async def test_a_model_that_does_not_think_keeps_any_budget() -> None:
    """Clients that ask every model for thinking are answered without."""
    async with serving() as rig:
        body = (await rig.post(PATH, asked(thinking={"type": "enabled", "budget_tokens": 9}))).json()
        assert [block["type"] for block in body["content"]] == ["text"]
        assert rig.engine.seen[0].params.thinking is None


@pytest.mark.parametrize(
    ("fields", "param", "told"),
    [
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type", "runs no tools of its own"),
        ({"tools": [{"name": "look"}]}, "tools[0].input_schema", "is required"),
        ({"tools": [{**LOOK, "name": "a b"}]}, "tools[0].name", "letters, digits"),
        ({"tools": [LOOK, LOOK]}, "tools[1].name", "another function"),
        ({"tools": [{**LOOK, "input_schema": {"type": 5}}]}, "tools[0].input_schema.type", "input_schema.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "only allowed together with tools"),
        ({"tools": [LOOK], "tool_choice": {"type": "some"}}, "tool_choice.type", "must be one of"),
        ({"tools": [LOOK], "tool_choice": {"type": "tool"}}, "tool_choice.name", "is required"),
        ({"tools": [LOOK], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name", "one of the tools"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens", "budget_tokens"),
        ({"output_config": {"effort": "much"}}, "output_config.effort", "output_config.effort"),
    ],
)
async def test_what_is_refused_is_named(fields: dict[str, Any], param: str, told: str) -> None:
    """As this API calls it."""
    async with serving() as rig:
        response = await rig.post(PATH, asked(**fields))
        error = error_of(response)
        assert (response.status_code, error["param"]) == (400, param)
        assert told in error["message"]
        assert not rig.engine.seen
