"""The openai package's helpers: streams as events, with usage and log-probabilities; answers parsed into a class."""

import sys

import openai
import pydantic


class City(pydantic.BaseModel):
    """What is asked for."""

    name: str
    is_capital: bool


def main(base_url: str) -> None:
    with openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0) as client:
        (model,) = client.models.list().data
        with client.chat.completions.stream(
            model=model.id,
            messages=[{"role": "user", "content": "What is 2 + 2? Only the number."}],
            temperature=0,
            max_tokens=100,
            logprobs=True,
            top_logprobs=1,
            stream_options={"include_usage": True},
        ) as stream:
            deltas = [event.delta for event in stream if event.type == "content.delta"]
            final = stream.get_final_completion()
        (choice,) = final.choices
        assert "".join(deltas) == choice.message.content
        assert "4" in (choice.message.content or "")
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert final.usage is not None
        assert len(choice.logprobs.content) == final.usage.completion_tokens
        parsed = client.chat.completions.parse(
            model=model.id,
            messages=[{"role": "user", "content": "Paris is the capital of France. Answer in JSON."}],
            response_format=City,
            temperature=0,
            max_tokens=100,
        )
        assert isinstance(parsed.choices[0].message.parsed, City)


if __name__ == "__main__":
    main(sys.argv[1])
