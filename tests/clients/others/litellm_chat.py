"""litellm: a chat, plain and streamed, by way of its `openai/` provider."""

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
    chunks = litellm.completion(messages=messages, stream=True, **how)
    assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


if __name__ == "__main__":
    main(sys.argv[1])
