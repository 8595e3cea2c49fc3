"""Tools over HTTP: what may be asked, what reaches the template and the engine, and the shape of the answers."""

import json
from typing import Any

import pytest

from triolet.engine.core.grammar import GrammarSpec
from triolet.engine.prompt import ChatPrompt

from .fake_engine import FakeEngine
from .rig import chat, error_of, events_of, serving

CHAT = "/v1/chat/completions"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "So.", "parameters": PARAMETERS}}
NOW = {"type": "function", "function": {"name": "now"}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TEMPLATE = "{{ tools }}<tool_call>"


def with_schema(schema: Any) -> dict[str, Any]:
    return chat(tools=[NOW, {"type": "function", "function": {"name": "f", "parameters": schema}}])


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"properties": {"a": schema}}
    return schema


INNER = "tools[1].function.parameters"
REFUSED = [
    (chat(tools=[]), "tools", "tools must not be an empty list"),
    (chat(tools=[NOW] * 513), "tools", "tools may hold at most 512 tools, not 513."),
    (chat(tools=[NOW, NOW]), "tools[1].function.name", "tools[1].function.name: there is another function"),
    (chat(tools=[{**NOW, "type": "retrieval"}]), "tools[0].type", "tools[0].type must be 'function', not 'retrieval'"),
    (
        chat(tools=[{"type": "function", "function": {"name": "a b"}}]),
        "tools[0].function.name",
        "tools[0].function.name must be 1 to 128 letters",
    ),
    (chat(tool_choice="required"), "tool_choice", "tool_choice is only allowed together with tools."),
    (chat(tools=[NOW], tool_choice="any"), "tool_choice", "tool_choice must be one of none, auto, required"),
    (
        chat(tools=[NOW], tool_choice=NAMED),
        "tool_choice.function.name",
        "tool_choice.function.name must be one of the tools, not 'get_weather'.",
    ),
    (chat(tools=[NOW], tool_choice={**NAMED, "type": "x"}), "tool_choice.type", "tool_choice.type must be 'function'."),
    (with_schema({"type": "array"}), f"{INNER}.type", f'{INNER}.type must be "object"'),
    (
        with_schema({"properties": {"a": {"type": "str"}}}),
        f"{INNER}.properties.a.type",
        f"{INNER}.properties.a.type must be one of string, number",
    ),
    (
        with_schema({"properties": {"a": {"pattern": "(["}}}),
        f"{INNER}.properties.a.pattern",
        f"{INNER}.properties.a.pattern is no regular expression: a bracket is not closed.",
    ),
    (with_schema({"properties": {"a": {"pattern": 1}}}), f"{INNER}.properties.a.pattern", f"{INNER}.properties.a."),
    (with_schema({"properties": [1]}), f"{INNER}.properties", f"{INNER}.properties must be an object, not a list."),
    (with_schema({"required": "city"}), f"{INNER}.required", f"{INNER}.required must be a list of names"),
    (with_schema({"anyOf": []}), f"{INNER}.anyOf", f"{INNER}.anyOf must be a list that is not empty"),
    (with_schema({"items": 3}), f"{INNER}.items", f"{INNER}.items must be a schema, not 3."),
    (with_schema({"maxItems": -1}), f"{INNER}.maxItems", f"{INNER}.maxItems must be an integer of at least 0"),
    (with_schema({"minimum": "1"}), f"{INNER}.minimum", f"{INNER}.minimum must be a number, not '1'."),
    (
        with_schema({"properties": {"a": {"$ref": "http://x/y"}}}),
        f"{INNER}.properties.a.$ref",
        f"{INNER}.properties.a.$ref must point into the schema itself",
    ),
    (with_schema(deep(40)), INNER, f"{INNER} is nested more than 64 deep."),
    (with_schema({"default": list(range(20_001))}), INNER, f"{INNER} has more than 20000 parts."),
    (
        chat(tools=[{"type": "function", "function": {"name": "f", "description": "x" * 300_000}}]),
        "tools",
        "tools may have 262144 bytes of JSON in all.",
    ),
    (
        chat(tools=[WEATHER], tool_choice="required", structured_outputs={"regex": "a"}),
        "structured_outputs",
        "structured_outputs cannot be combined with a tool_choice that asks for a call.",
    ),
    (
        {**with_schema({"properties": {"a": {"not": {}}}}), "tool_choice": "required"},
        INNER,
        f"{INNER} cannot be enforced: the keyword 'not' is not supported.",
    ),
    (
        chat(tools=[WEATHER], tool_choice="required", use_beam_search=True, n=2),
        "tool_choice",
        "tool_choice cannot be combined with use_beam_search.",
    ),
    (chat(thinking_token_budget=5), "thinking_token_budget", "thinking_token_budget takes a model that marks its"),
    (
        chat(thinking_token_budget=-2),
        "thinking_token_budget",
        "thinking_token_budget is malformed: expected `int` >= -1.",
    ),
    (chat(reasoning_effort="huge"), "reasoning_effort", "reasoning_effort is malformed: invalid enum value 'huge'."),
]


@pytest.mark.parametrize(("body", "param", "message"), REFUSED, ids=range(len(REFUSED)))
async def test_what_is_wrong_with_tools_is_a_400_that_names_it(body: dict[str, Any], param: str, message: str) -> None:
    """Before the engine hears of the request; and the next one is answered."""
    async with serving() as rig:
        response = await rig.post(CHAT, body)
        error = error_of(response)
        assert (response.status_code, error["param"]) == (400, param)
        assert error["message"].startswith(message), error["message"]
        assert not rig.engine.seen
        assert (await rig.post(CHAT, chat())).status_code == 200


async def test_tools_reach_the_template() -> None:
    """As OpenAI writes them; none where none may be called."""
    async with serving() as rig:
        rig.engine.tokenizer.template = TEMPLATE
        for choice in ("auto", "none"):
            assert (await rig.post(CHAT, chat(tools=[WEATHER, NOW], tool_choice=choice))).status_code == 200
        given, left_out = (seen.prompt for seen in rig.engine.seen)
    assert isinstance(given, ChatPrompt)
    empty = {"type": "object", "properties": {}}
    now = {"type": "function", "function": {"name": "now", "description": "", "parameters": empty}}
    assert given.variables["tools"] == [WEATHER, now]
    assert isinstance(left_out, ChatPrompt)
    assert "tools" not in left_out.variables


async def test_a_template_without_tools_gets_them_in_the_systems_message() -> None:
    """With calls and results of the conversation as text."""
    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "Sunny."},
    ]
    async with serving() as rig:
        assert (await rig.post(CHAT, {"messages": messages, "tools": [WEATHER]})).status_code == 200
        prompt = rig.engine.seen[0].prompt
    assert isinstance(prompt, ChatPrompt)
    assert "tools" not in prompt.variables
    system, user, assistant, result = prompt.messages
    assert system["content"].startswith("Be brief.\n\n")
    assert json.dumps(PARAMETERS) in system["content"]
    assert "<tool_call>" in system["content"]
    assert user == messages[1]
    assert assistant == {"role": "assistant", "content": CALL}
    assert result == {"role": "user", "content": "<tool_response>\nSunny.\n</tool_response>"}


GRAMMARS: list[tuple[dict[str, Any], list[str]]] = [
    ({"tool_choice": "auto"}, []),
    ({"tool_choice": "none"}, []),
    ({"tool_choice": NAMED}, ["get_weather", '"type":"tag"']),
    ({"tool_choice": "required"}, ["get_weather", "now", '"type":"repeat"', '"max":15']),
    ({"tool_choice": "required", "parallel_tool_calls": False}, ['"format":{"type":"or"']),
    ({"response_format": {"type": "json_object"}}, ['"type":"or"', "get_weather"]),
    (
        {"tools": [{"type": "function", "function": {**WEATHER["function"], "strict": True}}]},  # type: ignore[dict-item]
        ["triggered_tags", "get_weather"],
    ),
]


@pytest.mark.parametrize(("fields", "parts"), GRAMMARS, ids=range(len(GRAMMARS)))
async def test_calls_that_are_asked_for_are_a_constraint(fields: dict[str, Any], parts: list[str]) -> None:
    """A structural tag in the parser's own format; where text is free there is none, unless a function is strict."""
    async with serving() as rig:
        rig.engine.tokenizer.template = TEMPLATE
        response = await rig.post(CHAT, chat(**{"tools": [WEATHER, NOW], **fields}))
        assert response.status_code == 200, response.text
        grammar = rig.engine.seen[0].params.grammar
    assert (grammar is None) == (not parts)
    if isinstance(grammar, GrammarSpec):
        assert grammar.kind == "structural_tag"
        assert all(part in grammar.source for part in parts)


async def ask(pieces: list[str], **fields: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The choice of a plain answer, and the choices of a stream's events."""
    async with serving(FakeEngine(pieces=pieces)) as rig:
        rig.engine.tokenizer.template = TEMPLATE
        body = chat(tools=[WEATHER, NOW], **fields)
        plain = (await rig.post(CHAT, body)).json()["choices"][0]
        events = events_of((await rig.post(CHAT, {**body, "stream": True})).text)
    return plain, [event["choices"][0] for event in events]


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_call_is_a_part_of_its_own(size: int) -> None:
    """Plain and streamed, in pieces of any size: id and name first, then the arguments; content beside it."""
    text = f"I look.\n{CALL}\n"
    plain, events = await ask([text[start : start + size] for start in range(0, len(text), size)])
    message = plain["message"]
    (call,) = message["tool_calls"]
    assert (message["content"], plain["finish_reason"]) == ("I look.", "tool_calls")
    assert call == {
        "id": call["id"],
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
    }
    deltas = [event["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == "I look."
    first, *others = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert first["function"] == {"name": "get_weather", "arguments": ""}
    assert (first["index"], first["type"]) == (0, "function")
    assert first["id"].startswith("chatcmpl-tool-")
    assert all(other.keys() == {"index", "function"} for other in others)
    assert "".join(other["function"]["arguments"] for other in others) == '{"city": "Paris"}'
    assert events[-1]["delta"] == {}
    assert events[-1]["finish_reason"] == "tool_calls"


async def test_an_answer_of_calls_alone_has_no_content() -> None:
    """It is null; and a function that was named ends with stop."""
    plain, events = await ask([CALL])
    assert plain["message"]["content"] is None
    plain, events = await ask([CALL], tool_choice=NAMED)
    assert plain["finish_reason"] == events[-1]["finish_reason"] == "stop"
    assert plain["message"]["tool_calls"]


@pytest.mark.parametrize("fields", [{"tool_choice": "none"}, {}])
async def test_what_is_no_call_is_content(fields: dict[str, Any]) -> None:
    """Where nothing may be called all of it is, else what has no name of a function."""
    text = CALL if fields else CALL.replace("get_weather", "unknown")
    plain, events = await ask(list(text), **fields)
    assert "tool_calls" not in plain["message"]
    assert (plain["message"]["content"], plain["finish_reason"]) == (text, "stop")
    assert "".join(event["delta"].get("content", "") for event in events) == text


async def test_one_call_where_they_are_not_parallel() -> None:
    """The others are dropped."""
    plain, events = await ask([f"{CALL}\n{CALL}"], parallel_tool_calls=False)
    assert len(plain["message"]["tool_calls"]) == 1
    assert all(call["index"] == 0 for event in events for call in event["delta"].get("tool_calls", ()))


async def test_tokens_stand_beside_what_they_say() -> None:
    """With log-probabilities every token comes once, also those of a marker."""
    _, events = await ask(list(CALL), logprobs=True, return_token_ids=True)
    tokens = [entry["token"] for event in events if event["logprobs"] for entry in event["logprobs"]["content"]]
    assert "".join(tokens) == CALL
    assert [token for event in events for token in event.get("token_ids", ())] == list(map(ord, CALL))


async def test_a_parser_is_named_by_a_flag() -> None:
    """It goes before what the template tells."""
    text = '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}'
    async with serving(FakeEngine(pieces=[text]), tool_call_parser="mistral") as rig:
        rig.engine.tokenizer.template = TEMPLATE
        choice = (await rig.post(CHAT, chat(tools=[WEATHER]))).json()["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert len(choice["message"]["tool_calls"][0]["id"]) == 9
