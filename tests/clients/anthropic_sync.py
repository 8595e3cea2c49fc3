"""The anthropic package: messages whole and streamed, stop sequences, a prefilled answer, a form, counts, errors."""

import json
import sys
from typing import Any

import anthropic
import pytest

CAPITAL = "What is the capital of France?"
GREEDY = {"temperature": 0}
"""Newer models of Anthropic's have no such field, and so neither has the newer client."""


def whole(client: anthropic.Anthropic, model: str) -> None:
    message = client.messages.create(
        model=model,
        max_tokens=40,
        system=[{"type": "text", "text": "You are a helpful assistant.", "cache_control": {"type": "ephemeral"}}],
        messages=[{"role": "user", "content": [{"type": "text", "text": CAPITAL}]}],
        extra_body={"temperature": 0, "top_k": 50, "top_p": 0.9},
        metadata={"user_id": "someone"},
    )
    (block,) = message.content
    assert block.type == "text"
    assert "Paris" in block.text
    assert (message.role, message.stop_reason, message.stop_sequence) == ("assistant", "end_turn", None)
    assert message.usage.output_tokens > 0
    count = client.messages.count_tokens(
        model=model, system="You are a helpful assistant.", messages=[{"role": "user", "content": CAPITAL}]
    )
    assert count.input_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
    cut = client.messages.create(model=model, max_tokens=3, messages=[{"role": "user", "content": CAPITAL}])
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 3)
    stopped = client.messages.create(
        model=model,
        max_tokens=40,
        messages=[{"role": "user", "content": CAPITAL}],
        stop_sequences=["Paris"],
        extra_body=GREEDY,
    )
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "Paris")
    prefilled = client.messages.create(
        model=model,
        max_tokens=5,
        extra_body=GREEDY,
        messages=[{"role": "user", "content": CAPITAL}, {"role": "assistant", "content": "The capital of France is"}],
    )
    assert prefilled.content[0].type == "text"
    assert prefilled.content[0].text.strip().startswith("Paris")


def streamed(client: anthropic.Anthropic, model: str) -> None:
    said_before = [{"role": "user", "content": CAPITAL}]
    asked = {"model": model, "max_tokens": 40, "extra_body": GREEDY, "messages": said_before}
    with client.messages.stream(**asked) as stream:  # type: ignore[arg-type]
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].type == "text"
    assert final.content[0].text == said
    assert "Paris" in said
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens > 0
    kinds = [event.type for event in client.messages.create(**asked, stream=True)]  # type: ignore[call-overload]
    assert [kind for kind in kinds if kind != "content_block_delta"] == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def formed(client: anthropic.Anthropic, model: str) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    }
    message = client.messages.create(
        model=model,
        max_tokens=100,
        extra_body=GREEDY,
        messages=[{"role": "user", "content": CAPITAL}],
        output_config={"format": {"type": "json_schema", "schema": schema}},
    )
    assert message.content[0].type == "text"
    assert json.loads(message.content[0].text).keys() == {"city"}


def calling(client: anthropic.Anthropic, model: str) -> None:
    """A tool that is demanded, whole and streamed; then its result."""
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    }
    asked: dict[str, Any] = {
        "model": model,
        "max_tokens": 200,
        "messages": [{"role": "user", "content": "Remember the city of Rome."}],
        "tools": [{"name": "remember", "description": "Remember a city.", "input_schema": schema, "strict": True}],
        "extra_body": GREEDY,
    }
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "remember"}):
        message = client.messages.create(**asked, tool_choice=choice)
        (block,) = message.content
        assert block.type == "tool_use"
        assert (block.name, block.input.keys()) == ("remember", {"city"})
        assert message.stop_reason == "tool_use"
        with client.messages.stream(**asked, tool_choice=choice) as stream:
            pieces = [event.partial_json for event in stream if event.type == "input_json"]
            final = stream.get_final_message()
        assert len(pieces) > 1
        assert final.content[0].type == "tool_use"
        assert final.content[0].input == json.loads("".join(pieces)) == block.input
    asked["messages"] += [
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "Remembered."}]},
    ]
    assert client.messages.count_tokens(**{n: asked[n] for n in ("model", "messages", "tools")}).input_tokens > 50
    message = client.messages.create(**{**asked, "max_tokens": 40})
    assert message.content


def runner(client: anthropic.Anthropic, model: str) -> None:
    """The package's own loop: it asks for a thread first, is refused one, and sends the whole conversation then."""
    asked: list[str] = []

    @anthropic.beta_tool
    def remember(city: str) -> str:
        """Remember a city.

        Args:
            city: Its name.
        """
        asked.append(city)
        return "Remembered."

    run = client.beta.messages.tool_runner(
        model=model,
        max_tokens=200,
        tools=[remember],
        messages=[{"role": "user", "content": "Remember the city of Rome."}],
        tool_choice={"type": "tool", "name": "remember"},
        extra_body=GREEDY,
        max_iterations=2,
    )
    assert [message.stop_reason for message in run] == ["tool_use", "tool_use"]
    assert asked


def refused(client: anthropic.Anthropic, model: str) -> None:
    hi = [{"role": "user", "content": "Hi"}]
    for field, value in (("max_tokens", 0), ("temperature", 3), ("container", "c"), ("no_such_field", 1)):
        with pytest.raises(anthropic.BadRequestError) as bad:
            client.messages.create(model=model, messages=hi, max_tokens=5, extra_body={field: value})  # type: ignore[arg-type]
        told = bad.value.body
        assert isinstance(told, dict)
        assert told["type"] == "error"
        assert told["error"]["type"] == "invalid_request_error"
        assert told["error"]["param"] == field
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="claude", messages=hi, max_tokens=5)  # type: ignore[arg-type]


def main(base_url: str) -> None:
    root = base_url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=root, api_key="unused", max_retries=0) as client:
        model = client.models.list().data[0].id
        for check in (whole, streamed, formed, calling, runner, refused):
            check(client, model)


if __name__ == "__main__":
    main(sys.argv[1])
