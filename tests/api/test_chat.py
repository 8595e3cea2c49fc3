"""POST /v1/chat/completions: what a client gets, plain and streamed."""

import openai
import pytest
import trio

from triolet.engine.core.errors import RequestFailed
from triolet.engine.core.events import FinishReason
from triolet.engine.prompt import ChatPrompt

from .fake_engine import FakeEngine, overloaded
from .rig import chat, error_of, events_of, raw_post, read_until, serving

PATH = "/v1/chat/completions"
TEXT = "Hello, wörld 🌍!"


async def test_a_plain_chat_has_the_whole_text_and_the_usage() -> None:
    """The answer has OpenAI's shape, the model's name, a stop reason and the cached tokens."""
    async with serving() as rig:
        rig.engine.cached_tokens = 5
        response = await rig.post(PATH, chat(model="fake", temperature=0, user="someone"))
    assert response.status_code == 200
    body = response.json()
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", "fake")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": TEXT, "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    prompt_tokens = len("<user>Hi<assistant>")
    assert body["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 4,
        "total_tokens": prompt_tokens + 4,
        "prompt_tokens_details": {"cached_tokens": 5},
    }
    assert response.headers["x-request-id"]


async def test_a_streamed_chat_opens_with_the_role_and_ends_with_the_reason() -> None:
    """Role first, then text deltas that add up, then the finish reason, then [DONE]; proxies are told not to buffer."""
    async with serving() as rig:
        response = await rig.post(PATH, chat(stream=True))
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"]
    events = events_of(response.text)
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta["content"] for delta in deltas[1:-1]) == TEXT
    assert deltas[-1] == {}
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * (len(events) - 1) + ["stop"]


async def test_include_usage_adds_a_chunk_without_choices() -> None:
    """With stream_options.include_usage the last chunk before [DONE] has the usage and no choices."""
    async with serving() as rig:
        rig.engine.cached_tokens = 2
        response = await rig.post(PATH, chat(stream=True, stream_options={"include_usage": True}))
    last = events_of(response.text)[-1]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


async def test_messages_reach_the_template_as_text() -> None:
    """A list of text parts is one text, a name is kept, an assistant's missing content is empty."""
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]},
        {"role": "user", "content": "Hi", "name": "Ada"},
        {"role": "assistant", "content": None},
    ]
    async with serving() as rig:
        assert (await rig.post(PATH, {"messages": messages})).status_code == 200
        prompt = rig.engine.seen[0].prompt
    assert isinstance(prompt, ChatPrompt)
    assert [dict(message) for message in prompt.messages] == [
        {"role": "system", "content": "Be\nbrief."},
        {"role": "user", "content": "Hi", "name": "Ada"},
        {"role": "assistant", "content": ""},
    ]


async def test_the_sampling_fields_reach_the_engine() -> None:
    """Every field of the request is in the engine's parameters; null means the default."""
    fields = {
        "max_completion_tokens": 9,
        "max_tokens": 3,
        "min_tokens": 2,
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 7,
        "min_p": 0.125,
        "seed": 11,
        "stop": ["a", "b"],
        "stop_token_ids": [4],
        "ignore_eos": True,
    }
    async with serving() as rig:
        await rig.post(PATH, chat(**fields))
        await rig.post(PATH, chat(**dict.fromkeys(fields)))
        given, default = (seen.params for seen in rig.engine.seen)
    assert (given.max_tokens, given.min_tokens, given.temperature, given.top_p) == (9, 2, 0.5, 0.25)
    assert (given.top_k, given.min_p, given.seed, given.stop) == (7, 0.125, 11, ("a", "b"))
    assert (given.stop_token_ids, given.ignore_eos) == ((4,), True)
    assert (default.max_tokens, default.temperature, default.seed, default.stop) == (None, 1.0, None, ())


@pytest.mark.parametrize(
    ("reason", "word"),
    [(FinishReason.LENGTH, "length"), (FinishReason.ABORT, "abort"), (FinishReason.TIMEOUT, "timeout")],
)
async def test_every_end_has_its_word(reason: FinishReason, word: str) -> None:
    """The engine's finish reason is the client's, with the stop reason beside it."""
    engine = FakeEngine()
    engine.finish_reason, engine.stop_reason = reason, "###"
    async with serving(engine) as rig:
        plain = (await rig.post(PATH, chat())).json()["choices"][0]
        streamed = events_of((await rig.post(PATH, chat(stream=True))).text)[-1]["choices"][0]
    assert plain["finish_reason"] == streamed["finish_reason"] == word
    assert plain["stop_reason"] == streamed["stop_reason"] == "###"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_before_the_first_byte_is_a_status(stream: bool) -> None:
    """A full queue, a prompt too long and an unknown model are HTTP errors of their own, also for a stream."""
    engine = FakeEngine(max_model_len=10)
    async with serving(engine) as rig:
        response = await rig.post(PATH, chat(stream=stream))
        assert response.status_code == 400
        error = error_of(response)
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
        assert "19 tokens" in error["message"]
        assert "10" in error["message"]
        engine.refusal = overloaded()
        response = await rig.post(PATH, chat(stream=stream))
        assert response.status_code == 503
        assert response.headers["retry-after"] == "7"
        assert error_of(response)["code"] == "overloaded"
        response = await rig.post(PATH, chat(stream=stream, model="gpt-4"))
        assert response.status_code == 404
        error = error_of(response)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "`gpt-4` does not exist" in error["message"]


async def test_an_error_in_a_stream_is_an_event() -> None:
    """What was said stays said; then one error event, then [DONE]."""
    engine = FakeEngine()
    engine.break_after, engine.error = 2, RequestFailed("The logits were not numbers.")
    async with serving(engine) as rig:
        response = await rig.post(PATH, chat(stream=True))
    assert response.status_code == 200
    *said, last = events_of(response.text)
    assert "".join(event["choices"][0]["delta"]["content"] for event in said) == "Hello, "
    assert last["error"]["message"] == "The logits were not numbers."
    assert last["error"]["type"] == "server_error"


async def test_an_error_in_a_plain_request_is_a_500() -> None:
    """The engine's reason reaches the client."""
    engine = FakeEngine()
    engine.break_after, engine.error = 2, RequestFailed("The logits were not numbers.")
    async with serving(engine) as rig:
        response = await rig.post(PATH, chat())
    assert response.status_code == 500
    assert error_of(response)["message"] == "The logits were not numbers."


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_of_our_own_tells_nothing_of_the_inside(stream: bool) -> None:
    """An unknown exception is a 500 with a fixed text, whatever it says, and the server goes on."""
    engine = FakeEngine()
    engine.break_after, engine.error = 1, ValueError("/home/secret at 0x7f00")
    async with serving(engine) as rig:
        response = await rig.post(PATH, chat(stream=stream))
        assert "secret" not in response.text
        assert "error of its own" in response.text
        engine.break_after = None
        assert (await rig.post(PATH, chat())).status_code == 200


async def test_the_official_client_reads_a_plain_answer_and_a_stream() -> None:
    """The openai package, plain and streamed, with usage; its exceptions carry our message and field."""
    async with serving() as rig:

        def talk() -> None:
            client = openai.OpenAI(base_url=f"{rig.url}/v1", api_key="unused", max_retries=0)
            with client:
                messages = [{"role": "user", "content": "Hi"}]
                plain = client.chat.completions.create(model="fake", messages=messages)
                assert plain.choices[0].message.content == TEXT
                assert plain.usage.total_tokens == 23
                chunks = list(
                    client.chat.completions.create(
                        model="fake", messages=messages, stream=True, stream_options={"include_usage": True}
                    )
                )
                assert chunks[0].choices[0].delta.role == "assistant"
                assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == TEXT
                assert chunks[-2].choices[0].finish_reason == "stop"
                assert chunks[-1].usage.completion_tokens == 4
                assert [model.id for model in client.models.list()] == ["fake"]
                with pytest.raises(openai.BadRequestError) as caught:
                    client.chat.completions.create(model="fake", messages=messages, temperature=3)
                assert caught.value.param == "temperature"
                rig.engine.break_after, rig.engine.error = 1, RequestFailed("It broke.")
                with pytest.raises(openai.APIError, match="It broke"):
                    list(client.chat.completions.create(model="fake", messages=messages, stream=True))

        await trio.to_thread.run_sync(talk)


async def test_a_quiet_stream_sends_comments() -> None:
    """While nothing is said, comments keep the connection; what is said ends them."""
    engine = FakeEngine(hold="queued")
    async with serving(engine, ping_interval=0.01) as rig, await rig.connect() as stream:
        await stream.send_all(raw_post(PATH, chat(stream=True)))
        await read_until(stream, b": ping\n\n")
        engine.release()
        rest = await read_until(stream, b"data: [DONE]\n\n")
    assert b'"content":"Hello"' in rest
