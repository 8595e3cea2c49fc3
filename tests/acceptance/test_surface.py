"""The fields of chats and completions against the built-in model: by value, and as other programs need them."""

import json
import math
from typing import Any

import httpx
import openai
import pydantic
import pytest
import trio

from triolet.engine.config import EngineConfig

from .serving import Served, serving

KV_BYTES = 200 << 20


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


async def ask(served: Served, path: str, **body: Any) -> dict[str, Any]:
    response: httpx.Response = await served.client.post(path, json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())


def loglikelihood(choice: dict[str, Any], num_context: int) -> tuple[float, bool]:
    """What lm_eval's local-completions makes of an echoed answer: one token was generated, and is left off."""
    logprobs = choice["logprobs"]
    tokens, tops = (logprobs[name][num_context:-1] for name in ("tokens", "top_logprobs"))
    is_greedy = all(token == max(top, key=top.get) for token, top in zip(tokens, tops, strict=True))
    return sum(logprobs["token_logprobs"][num_context:-1]), is_greedy


async def test_the_surface_by_value() -> None:
    """One server, one look after the other: loading the model is what takes the time."""
    config = EngineConfig(kv_cache_memory=KV_BYTES, max_model_len=1024)
    async with serving(config) as served:
        await _logprobs_are_those_of_the_answer(served)
        await _loglikelihoods_rank_the_truth_first(served)
        await _beams_and_named_tokens_have_logprobs(served)
        await _texts_become_vectors(served)
        await _biases_and_masks_rule(served)
        await _masks_that_leave_nothing_are_refused(served)
        await _conversations_can_be_continued(served)
        await _an_answer_has_its_form(served)
        await served.wait_idle()


async def _logprobs_are_those_of_the_answer(served: Served) -> None:
    """Greedy tokens are the most likely ones; bytes and places make up the text; chats and completions agree."""
    body = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    (choice,) = (await ask(served, "/v1/completions", **body, logprobs=5, return_token_ids=True))["choices"]
    logprobs, text = choice["logprobs"], choice["text"]
    assert "".join(logprobs["tokens"]) == text
    ends = [*logprobs["text_offset"][1:], len(text)]
    assert [text[start:end] for start, end in zip(logprobs["text_offset"], ends, strict=True)] == logprobs["tokens"]
    for token, logprob, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert top[token] == logprob == max(top.values())
        assert len(top) == 5
        assert sum(map(math.exp, top.values())) <= 1 + 1e-5
    assert len(choice["token_ids"]) == 8
    echoed = (await ask(served, "/v1/completions", **(body | {"max_tokens": 0}), logprobs=5, echo=True))["choices"][0]
    again = choice["prompt_token_ids"] + choice["token_ids"]
    body = {**body, "prompt": again, "max_tokens": 0}
    whole = (await ask(served, "/v1/completions", **body, logprobs=5, echo=True))["choices"][0]
    known = [*echoed["logprobs"]["token_logprobs"], *logprobs["token_logprobs"]]
    assert whole["logprobs"]["token_logprobs"][0] is None
    assert whole["logprobs"]["token_logprobs"][1:] == pytest.approx(known[1:], abs=0.05)

    messages = [{"role": "user", "content": "Say é"}]
    how = {"messages": messages, "temperature": 0, "max_tokens": 12, "logprobs": True, "top_logprobs": 2}
    plain = (await ask(served, "/v1/chat/completions", **how))["choices"][0]
    content = plain["logprobs"]["content"]
    said = b"".join(bytes(entry["bytes"]) for entry in content).decode()
    assert said.startswith(plain["message"]["content"])  # the end token's own spelling may follow
    assert all(entry["top_logprobs"][0]["token"] == entry["token"] for entry in content)


async def _loglikelihoods_rank_the_truth_first(served: Served) -> None:
    """lm_eval's requests: texts and tokens, several at a time, one token generated and echoed."""
    questions = [("The capital of France is", " Paris", " Tokyo"), ("Two plus two is", " four", " banana")]
    for context, right, wrong in questions:
        tokens = [(await ask(served, "/tokenize", prompt=context + end))["tokens"] for end in ("", right, wrong)]
        num_context = len(tokens[0])
        body = {"max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234}
        for prompts in ([context + right, context + wrong], tokens[1:]):
            choices = (await ask(served, "/v1/completions", prompt=prompts, **body))["choices"]
            for choice, own in zip(choices, tokens[1:], strict=True):
                assert len(choice["logprobs"]["tokens"]) == len(own) + 1
            good, bad = (loglikelihood(choice, num_context)[0] for choice in choices)
            assert bad < good < 0
        greedy = (await ask(served, "/v1/completions", prompt=context, max_tokens=1, temperature=0))["choices"][0]
        said = (await ask(served, "/v1/completions", prompt=context + greedy["text"], **body))["choices"][0]
        assert loglikelihood(said, num_context)[1]


async def _beams_and_named_tokens_have_logprobs(served: Served) -> None:
    """Every token of a beam; and tokens that a request names, whatever their rank."""
    body = {"prompt": "The capital of France is", "max_tokens": 6, "logprobs": 3}
    answer = await ask(served, "/v1/completions", **body, n=2, use_beam_search=True)
    best, second = (sum(choice["logprobs"]["token_logprobs"]) for choice in answer["choices"])
    assert best > second
    assert all(len(choice["logprobs"]["top_logprobs"][0]) >= 3 for choice in answer["choices"])
    (paris,) = (await ask(served, "/tokenize", prompt=" Paris", add_special_tokens=False))["tokens"]
    how = {"logprob_token_ids": [paris, 5], "temperature": 0, "return_tokens_as_token_ids": True}
    top = (await ask(served, "/v1/completions", **body, **how))["choices"][0]["logprobs"]["top_logprobs"][0]
    assert {f"token_id:{paris}", "token_id:5"} <= top.keys()
    assert len(top) <= 3
    assert top["token_id:5"] < top[f"token_id:{paris}"]


async def _texts_become_vectors(served: Served) -> None:
    """Through the official client, which asks for base64: like texts are nearer to each other."""
    url, texts = f"http://127.0.0.1:{served.port}/v1", ["A cat sat on the mat.", "A cat sits on a mat.", "SELECT 1;"]

    def talk() -> None:
        with openai.OpenAI(base_url=url, api_key="unused", max_retries=0) as client:
            for pooling in ("last", "mean"):
                found = client.embeddings.create(model="", input=texts, extra_body={"pooling": pooling})
                a, b, c = (entry.embedding for entry in found.data)
                assert len(a) == 576
                assert math.hypot(*a) == pytest.approx(1, abs=1e-5)
                assert dot(a, b) > dot(a, c)
                assert found.usage.prompt_tokens > 10
            plain = client.embeddings.create(model="", input=texts[0], dimensions=64, encoding_format="float")
            assert len(plain.data[0].embedding) == 64

    await trio.to_thread.run_sync(talk)


async def _biases_and_masks_rule(served: Served) -> None:
    """A token that is allowed alone is all there is; a bias of 100 does nearly that; a bad word does not come."""
    (yes,) = (await ask(served, "/tokenize", prompt=" yes", add_special_tokens=False))["tokens"]
    body = {"prompt": "Is it so?", "max_tokens": 3, "seed": 7}
    for how in ({"allowed_token_ids": [yes]}, {"logit_bias": {str(yes): 100}}):
        assert (await ask(served, "/v1/completions", **body, **how))["choices"][0]["text"] == " yes" * 3
    body = {"prompt": "The capital of France is", "max_tokens": 6, "temperature": 0}
    assert "Paris" in (await ask(served, "/v1/completions", **body))["choices"][0]["text"]
    assert "Paris" not in (await ask(served, "/v1/completions", **body, bad_words=["Paris"]))["choices"][0]["text"]


async def _masks_that_leave_nothing_are_refused(served: Served) -> None:
    """The request's own fault: 400, or an error event of that type in a stream; the server goes on."""
    body = {"prompt": "x", "max_tokens": 5, "allowed_token_ids": [100], "response_format": {"type": "json_object"}}
    response = await served.client.post("/v1/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "allowed_token_ids")
    response = await served.client.post("/v1/completions", json={**body, "stream": True})
    assert f"data: {json.dumps({'error': error}, separators=(',', ':'))}\n\ndata: [DONE]" in response.text
    assert served.engine.health is None


async def _conversations_can_be_continued(served: Served) -> None:
    """The rendered prompt ends within the last message, and the answer goes on with it."""
    talk = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "The capital of France is the city of"},
    ]
    body = {"messages": talk, "add_generation_prompt": False, "continue_final_message": True}
    rendered = await ask(served, "/v1/chat/completions/render", **body)
    assert rendered["prompt"].endswith("the city of")
    answer = await ask(served, "/v1/chat/completions", **body, echo=True, temperature=0, max_tokens=5)
    assert answer["choices"][0]["message"]["content"].startswith("The capital of France is the city of Paris")
    assert answer["usage"]["prompt_tokens"] == len(rendered["token_ids"])
    response = await served.client.post("/v1/completions", json={"prompt": "a", "suffix": "b"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "suffix"


class City(pydantic.BaseModel):
    """What is asked for."""

    name: str
    is_capital: bool


async def _an_answer_has_its_form(served: Served) -> None:
    """The official client's own helpers: `.parse` into a class, and `.stream` with its events."""
    url = f"http://127.0.0.1:{served.port}/v1"

    def talk() -> None:
        with openai.OpenAI(base_url=url, api_key="unused", max_retries=0) as client:
            (model,) = [model.id for model in client.models.list()]
            messages: Any = [{"role": "user", "content": "Paris is the capital of France. Answer in JSON."}]
            parsed = client.chat.completions.parse(
                model=model, messages=messages, response_format=City, temperature=0, max_tokens=100
            )
            city = parsed.choices[0].message.parsed
            assert isinstance(city, City)
            messages = [{"role": "user", "content": "What is 2 + 2? Only the number."}]
            with client.chat.completions.stream(
                model=model,
                messages=messages,
                temperature=0,
                max_tokens=100,
                logprobs=True,
                top_logprobs=1,
                stream_options={"include_usage": True},
            ) as stream:
                deltas = [event.delta for event in stream if event.type == "content.delta"]
                completion = stream.get_final_completion()
            final = completion.choices[0]
            assert "".join(deltas) == final.message.content
            assert final.logprobs is not None
            assert final.logprobs.content is not None
            assert completion.usage is not None
            assert len(final.logprobs.content) == completion.usage.completion_tokens

    await trio.to_thread.run_sync(talk)
