"""The openai package, blocking: models, chats, completions, several answers, log-probabilities, errors."""

import sys

import openai
import pytest


def main(base_url: str) -> None:
    with openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0) as client:
        (model,) = client.models.list().data
        assert client.models.retrieve(model.id).id == model.id
        chat = client.chat.completions.create(
            model=model.id,
            messages=[
                {"role": "developer", "content": "You are a helpful assistant."},
                {"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"}]},
            ],
            temperature=0,
            max_completion_tokens=40,
            logprobs=True,
            top_logprobs=2,
            user="someone",
            store=False,
            metadata={"a": "b"},
        )
        (choice,) = chat.choices
        assert "Paris" in (choice.message.content or "")
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
        completion = client.completions.create(
            model=model.id,
            prompt=["One, two,", "A, B,"],
            n=2,
            echo=True,
            logprobs=1,
            max_tokens=4,
            temperature=0.5,
            seed=1,
            presence_penalty=0.1,
            frequency_penalty=0.1,
            logit_bias={"5": -100},
            stop=["\n"],
        )
        assert [each.index for each in completion.choices] == [0, 1, 2, 3]
        assert [each.text[:4] for each in completion.choices] == ["One,", "One,", "A, B", "A, B"]
        first = completion.choices[0].logprobs
        assert first is not None
        assert first.tokens is not None
        assert first.token_logprobs is not None
        assert len(first.tokens) == len(first.token_logprobs)
        with pytest.raises(openai.BadRequestError, match="from 0 to 2") as refused:
            client.completions.create(model=model.id, prompt="a", temperature=3)
        assert refused.value.param == "temperature"
        with pytest.raises(openai.NotFoundError) as missing:
            client.completions.create(model="gpt-4", prompt="a")
        assert missing.value.code == "model_not_found"


if __name__ == "__main__":
    main(sys.argv[1])
