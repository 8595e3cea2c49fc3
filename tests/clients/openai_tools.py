"""The openai package's tools: named and required ones, streamed and parsed; loops of calls and results."""

import json
import sys
from typing import Any, Literal

import openai
import pydantic
from openai.lib.responses_tool_runner import RegisteredFunction, ResponsesToolRunner


class GetWeather(pydantic.BaseModel):
    """What the weather is like in a city."""

    city: Literal["Paris", "Rome"]
    days: Literal[1, 2, 3]


PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 3}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "get_time", "description": "The time of day."}},
]
QUESTION: list[Any] = [{"role": "user", "content": "What is the weather in Rome? Call get_weather."}]


def check(arguments: str) -> None:
    GetWeather.model_validate(json.loads(arguments))


def plain_and_streamed(client: openai.OpenAI, model: str) -> None:
    """The same calls in both ways; a named function is called once, and the answer says stop."""
    asked: dict[str, Any] = {"model": model, "messages": QUESTION, "tools": TOOLS, "temperature": 0, "max_tokens": 200}
    for choice, reason in ((TOOLS[0], "stop"), ("required", "tool_calls")):
        how: Any = choice if isinstance(choice, str) else {"type": "function", "function": {"name": "get_weather"}}
        (answer,) = client.chat.completions.create(**asked, tool_choice=how, parallel_tool_calls=False).choices
        assert answer.finish_reason == reason
        assert answer.message.content is None
        assert answer.message.tool_calls is not None
        (call,) = answer.message.tool_calls
        if call.function.name == "get_weather":
            check(call.function.arguments)
        with client.chat.completions.stream(**asked, tool_choice=how, parallel_tool_calls=False) as stream:
            pieces = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
            final = stream.get_final_completion().choices[0]
        assert final.finish_reason == reason
        assert final.message.tool_calls is not None
        assert final.message.tool_calls[0].function.name == call.function.name
        assert final.message.tool_calls[0].function.arguments == call.function.arguments
        if call.function.name == "get_weather":
            assert len(pieces) > 2


def parsed(client: openai.OpenAI, model: str) -> None:
    """Arguments as an object of a class: the function is strict."""
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    done = client.chat.completions.parse(
        model=model,
        messages=QUESTION,
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=200,
    )
    assert done.choices[0].message.tool_calls is not None
    assert isinstance(done.choices[0].message.tool_calls[0].function.parsed_arguments, GetWeather)


def runner(client: openai.OpenAI, model: str) -> None:
    """Calls are answered until the model speaks, which it may from the second turn on."""
    messages: list[Any] = list(QUESTION)
    for turn in range(3):
        done = client.chat.completions.create(
            model=model,
            messages=messages,
            tools=TOOLS,
            tool_choice="auto" if turn else {"type": "function", "function": {"name": "get_weather"}},
            temperature=0,
            max_tokens=60,
        )
        message = done.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "Sunny."} for call in message.tool_calls]
    assert len(messages) >= 4
    assert messages[1].tool_calls[0].function.name == "get_weather"


def package_runner(client: openai.OpenAI, model: str) -> None:
    """The package's own loop over responses: the call is made, its result sent back, and the model speaks."""
    asked: list[dict[str, object]] = []

    def get_weather(arguments: dict[str, object]) -> str:
        asked.append(arguments)
        return "Sunny."

    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")["function"]
    runner = ResponsesToolRunner(functions=[RegisteredFunction({"type": "function", **tool}, get_weather)])  # type: ignore[typeddict-item]
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 1}}\n</tool_call>'
    done = runner.run(
        client,
        {"model": model, "input": f"Repeat this: {call}", "temperature": 0, "max_output_tokens": 100},
        max_steps=3,
    )
    assert asked == [{"city": "Rome", "days": 1}]
    assert done.output_text


def several(client: openai.OpenAI, model: str) -> None:
    """Each of n answers has calls of its own."""
    done = client.chat.completions.create(
        model=model, messages=QUESTION, tools=TOOLS[:1], tool_choice="required", n=3, seed=1, max_tokens=300
    )
    for answer in done.choices:
        for call in answer.message.tool_calls or ():
            if answer.finish_reason == "tool_calls":
                check(call.function.arguments)
    assert all(answer.message.tool_calls for answer in done.choices)


def main(base_url: str) -> None:
    with openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0) as client:
        (model,) = client.models.list().data
        for part in (plain_and_streamed, parsed, runner, package_runner, several):
            part(client, model.id)


if __name__ == "__main__":
    main(sys.argv[1])
