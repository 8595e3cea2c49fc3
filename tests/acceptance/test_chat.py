"""The built-in model as a user finds it: default settings, the chat endpoint, the official client."""

import openai
import trio

from triolet.engine.config import EngineConfig

from .asking import check_pool_is_free
from .serving import serving

QUESTIONS = [
    ("What is the capital of France?", "Paris"),
    ("What is the capital of Japan?", "Tokyo"),
    ("What is 2 + 2?", "4"),
]
KV_BYTES = 400 << 20


async def test_a_plain_factual_question_is_answered_sensibly() -> None:
    """Streamed and not: the fact is in the answer, which ends by itself; a conversation goes on from what is cached."""
    async with serving(EngineConfig(kv_cache_memory=KV_BYTES)) as served:
        url = f"http://127.0.0.1:{served.port}/v1"

        def talk() -> None:
            with openai.OpenAI(base_url=url, api_key="unused", max_retries=0) as client:
                _talk(client)

        await trio.to_thread.run_sync(talk)
        await served.wait_idle()
        check_pool_is_free(served.engine)


def _talk(client: openai.OpenAI) -> None:
    """In a worker thread."""
    (model,) = [model.id for model in client.models.list()]
    how = {"model": model, "temperature": 0, "max_tokens": 60}
    for question, fact in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        plain = client.chat.completions.create(messages=messages, **how)
        assert fact in plain.choices[0].message.content
        assert plain.choices[0].finish_reason == "stop"
        chunks = list(client.chat.completions.create(messages=messages, stream=True, **how))
        assert fact in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert len(chunks) > 3
        messages += [{"role": "assistant", "content": plain.choices[0].message.content}, messages[0]]
        again = client.chat.completions.create(messages=messages, **how)
        assert fact in again.choices[0].message.content
        assert again.usage.prompt_tokens_details.cached_tokens >= plain.usage.prompt_tokens // 16 * 16
