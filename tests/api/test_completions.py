"""POST /v1/completions: the four forms of a prompt, plain and streamed."""

import openai
import pytest
import trio

from triolet.api.wire import MAX_PROMPTS
from triolet.engine.core.errors import RequestFailed
from triolet.engine.prompt import TextPrompt, TokenPrompt

from .fake_engine import FakeEngine
from .rig import error_of, events_of, serving

PATH = "/v1/completions"
TEXT = "Hello, wörld 🌍!"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [TextPrompt(text="ab")]),
        (["ab", "c"], [TextPrompt(text="ab"), TextPrompt(text="c")]),
        ([5, 6], [TokenPrompt(token_ids=(5, 6))]),
        ([[5, 6], [7]], [TokenPrompt(token_ids=(5, 6)), TokenPrompt(token_ids=(7,))]),
    ],
)
async def test_a_prompt_has_four_forms(prompt: object, expected: list[object]) -> None:
    """A text, texts, token ids, lists of token ids: one choice for each prompt, the usage summed."""
    async with serving() as rig:
        response = await rig.post(PATH, {"prompt": prompt})
        assert [seen.prompt for seen in rig.engine.seen] == expected
        assert len({seen.request_id for seen in rig.engine.seen}) == len(expected)
    body = response.json()
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": index, "text": TEXT, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
        for index in range(len(expected))
    ]
    assert body["usage"]["completion_tokens"] == 4 * len(expected)


async def test_several_prompts_stream_into_their_own_choices() -> None:
    """The index of a chunk is that of its prompt; each choice ends once, the usage sums all of them."""
    async with serving() as rig:
        response = await rig.post(
            PATH, {"prompt": ["a", "b", "c"], "stream": True, "stream_options": {"include_usage": True}}
        )
    *events, last = events_of(response.text)
    texts = ["", "", ""]
    ends = []
    for event in events:
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["text"]
        if choice["finish_reason"] is not None:
            ends.append(choice["index"])
    assert texts == [TEXT] * 3
    assert sorted(ends) == [0, 1, 2]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 12


async def test_sixteen_tokens_are_the_default() -> None:
    """max_tokens is 16 unless it is given; the finish reason says that the limit ended the answer."""
    async with serving(FakeEngine(pieces=list("x" * 40))) as rig:
        choice = (await rig.post(PATH, {"prompt": "a"})).json()["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("x" * 16, "length")
        choice = (await rig.post(PATH, {"prompt": "a", "max_tokens": 3})).json()["choices"][0]
        assert choice["text"] == "xxx"


async def test_prompts_run_at_the_same_time() -> None:
    """All prompts of a request are in the engine together."""
    engine = FakeEngine(hold="queued")
    async with serving(engine) as rig, trio.open_nursery() as nursery:
        nursery.start_soon(rig.post, PATH, {"prompt": ["a", "b", "c"]})
        await engine.wait_seen(3)
        assert len(engine.open) == 3
        engine.release()


@pytest.mark.parametrize("stream", [False, True])
async def test_one_bad_prompt_refuses_the_request_and_ends_the_others(stream: bool) -> None:
    """A prompt that the engine refuses is the whole request's error, and the other prompts are given up."""
    engine = FakeEngine(max_model_len=10)
    async with serving(engine) as rig:
        response = await rig.post(PATH, {"prompt": ["a", "b" * 50], "stream": stream})
        assert response.status_code == 400
        assert error_of(response)["code"] == "context_length_exceeded"
        assert not engine.open


@pytest.mark.parametrize("stream", [False, True])
async def test_one_broken_prompt_ends_the_others(stream: bool) -> None:
    """An error while generating ends all prompts of the request, and the client hears it once."""
    engine = FakeEngine()
    engine.break_after, engine.error = 1, RequestFailed("It broke.")
    async with serving(engine) as rig:
        response = await rig.post(PATH, {"prompt": ["a", "b"], "stream": stream})
        assert response.text.count("It broke.") == 1
        assert not engine.open


async def test_too_many_prompts_are_refused_before_one_is_started() -> None:
    """1024 prompts are the limit of a request."""
    async with serving() as rig:
        response = await rig.post(PATH, {"prompt": ["a"] * (MAX_PROMPTS + 1)})
        assert response.status_code == 400
        error = error_of(response)
        assert error["param"] == "prompt"
        assert error["message"] == "prompt may hold at most 1024 prompts, not 1025."
        assert not rig.engine.seen


async def test_the_official_client_completes() -> None:
    """The openai package, plain and streamed."""
    async with serving() as rig:

        def talk() -> None:
            with openai.OpenAI(base_url=f"{rig.url}/v1", api_key="unused", max_retries=0) as client:
                plain = client.completions.create(model="fake", prompt=["a", "b"])
                assert [choice.text for choice in plain.choices] == [TEXT, TEXT]
                chunks = client.completions.create(model="fake", prompt="a", stream=True)
                assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT

        await trio.to_thread.run_sync(talk)
