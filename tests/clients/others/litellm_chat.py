"""litellm: a chat, plain and streamed, a JSON schema, a tool, and vectors, by way of its `openai/` provider."""

import json
import sys

import litellm
import openai


def main(base_url: str) -> None:
    with openai.OpenAI(base_url=base_url, api_key="unused") as client:
        (model,) = client.models.list().data
    how = {"model": f"openai/{model.id}", "api_base": base_url, "api_key": "unused", "temperature": 0, "max_tokens": 30}
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    plain = litellm.completion(messages=messages, **how)
    assert "Paris" in plain.choices[0].message.content
    schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    answer = litellm.completion(messages=messages, response_format=form, **how)
    assert isinstance(json.loads(answer.choices[0].message.content)["yes"], bool)
    tool = {"type": "function", "function": {"name": "answer", "parameters": schema}}
    chosen = {"type": "function", "function": {"name": "answer"}}
    asked = litellm.completion(messages=messages, tools=[tool], tool_choice=chosen, **how)
    assert isinstance(json.loads(asked.choices[0].message.tool_calls[0].function.arguments)["yes"], bool)
    vectors = litellm.embedding(model=how["model"], input=["a", "b"], api_base=base_url, api_key="unused")
    assert len(vectors.data) == 2
    chunks = litellm.completion(messages=messages, stream=True, **how)
    assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


if __name__ == "__main__":
    main(sys.argv[1])
