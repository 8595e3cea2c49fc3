"""The openai package's Responses: whole, streamed, parsed, continued, in the background, read, cancelled, deleted."""

import sys
from typing import Any

import openai
import pytest
from pydantic import BaseModel

CAPITAL = "What is the capital of France?"


class City(BaseModel):
    """What is asked for in a fixed form."""

    name: str
    country: str


def whole(client: openai.OpenAI, model: str) -> None:
    response = client.responses.create(
        model=model,
        instructions="You are a helpful assistant.",
        input=CAPITAL,
        temperature=0,
        max_output_tokens=40,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        metadata={"a": "b"},
    )
    assert response.status == "completed"
    assert "Paris" in response.output_text
    (item,) = response.output
    assert item.type == "message"
    (part,) = item.content
    assert part.type == "output_text"
    assert part.logprobs
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    again = client.responses.retrieve(response.id)
    assert again.output_text == response.output_text
    assert again.metadata == {"a": "b"}
    (said,) = client.responses.input_items.list(response.id).data
    assert said.type == "message"
    asked: dict[str, Any] = {"model": model, "input": "And of Spain?", "previous_response_id": response.id}
    asked["instructions"] = response.instructions
    more = client.responses.create(**asked, temperature=0, max_output_tokens=40)
    assert "Madrid" in more.output_text
    assert more.usage is not None
    assert more.usage.input_tokens > response.usage.total_tokens
    assert more.usage.input_tokens_details.cached_tokens > 0
    count = client.responses.input_tokens.count(**asked)
    assert count.input_tokens == more.usage.input_tokens
    client.responses.delete(response.id)
    for ask in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError):
            ask(response.id)
    with pytest.raises(openai.NotFoundError, match="continues it") as broken:
        client.responses.create(model=model, input="Go on", previous_response_id=more.id)
    assert broken.value.param == "previous_response_id"


def streamed(client: openai.OpenAI, model: str) -> None:
    asked: dict[str, Any] = {"model": model, "input": [{"role": "user", "content": CAPITAL}], "temperature": 0}
    with client.responses.stream(**asked, max_output_tokens=40) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events if event.type != "response.output_text.delta"]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said == final.output_text
    assert "Paris" in said
    raw = client.responses.create(**asked, max_output_tokens=3, stream=True)
    last = list(raw)[-1]
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"


def parsed(client: openai.OpenAI, model: str) -> None:
    response = client.responses.parse(
        model=model, input="Name a city and its country.", text_format=City, temperature=0, max_output_tokens=200
    )
    assert isinstance(response.output_parsed, City)
    with client.responses.stream(
        model=model, input="Name a city.", text_format=City, temperature=0, max_output_tokens=200
    ) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_response().output_parsed, City)


def behind(client: openai.OpenAI, model: str) -> None:
    response = client.responses.create(model=model, input=CAPITAL, background=True, temperature=0, max_output_tokens=40)
    assert response.background
    while response.status in ("queued", "in_progress"):
        response = client.responses.retrieve(response.id)
    assert response.status == "completed"
    assert "Paris" in response.output_text
    with pytest.raises(openai.BadRequestError, match="cannot be cancelled: it is completed"):
        client.responses.cancel(response.id)
    response = client.responses.create(
        model=model, input="Count.", background=True, max_output_tokens=1500, extra_body={"ignore_eos": True}
    )
    for _ in range(2):
        assert client.responses.cancel(response.id).status == "cancelled"
    assert client.responses.retrieve(response.id).status == "cancelled"


def calling(client: openai.OpenAI, model: str) -> None:
    """A call that is demanded, streamed and parsed; then its result."""
    tool = openai.pydantic_function_tool(City, name="remember", description="Remember a city.")
    flat: Any = {"type": "function", **tool["function"]}
    asked: dict[str, Any] = {
        "model": model,
        "input": "Remember the city of Rome in Italy.",
        "tools": [flat],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_output_tokens": 300,
    }
    with client.responses.stream(**asked) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response()
    (call,) = final.output
    assert call.type == "function_call"
    assert call.name == "remember"
    assert len(pieces) > 2
    assert "".join(pieces) == call.arguments
    City.model_validate_json(call.arguments)
    (again,) = client.responses.parse(**{**asked, "tools": [tool]}).output
    assert again.type == "function_call"
    assert isinstance(again.parsed_arguments, City)
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Remembered."}
    more = client.responses.create(
        model=model, input=[result], previous_response_id=final.id, tools=[flat], temperature=0, max_output_tokens=40
    )
    assert more.output_text
    named = client.responses.create(**{**asked, "tool_choice": {"type": "function", "name": "remember"}})
    assert named.output[0].type == "function_call"


def refused(client: openai.OpenAI, model: str) -> None:
    for field, value in (
        ("max_output_tokens", 0),
        ("temperature", 3),
        ("conversation", "conv_1"),
        ("truncation", "auto"),
        ("no_such_field", 1),
    ):
        with pytest.raises(openai.BadRequestError) as error:
            client.responses.create(model=model, input="Hi", extra_body={field: value})
        assert error.value.param == field
    form = {"type": "json_schema", "name": "x", "schema": {"type": "nothing"}}
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(model=model, input="Hi", extra_body={"text": {"format": form}})
    assert error.value.param == "text.format.schema"
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(model=model, input=[{"type": "item_reference", "id": "x"}])
    assert error.value.param == "input[0].type"


def main(base_url: str) -> None:
    with openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0) as client:
        (model,) = client.models.list().data
        for check in (whole, streamed, parsed, behind, calling, refused):
            check(client, model.id)


if __name__ == "__main__":
    main(sys.argv[1])
