"""Log-probabilities of answers and prompts: the shapes of chats and of completions, plain and streamed, by value."""

from typing import Any

import pytest

from .fake_engine import FakeEngine
from .rig import chat, events_of, serving

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def token(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def entry(text: str, num_top: int = 0) -> dict[str, Any]:
    """A chat's entry for a letter, as the fake engine makes it up."""
    tops = [token(chr(97 + place), -place / 1000) for place in range(num_top)]
    return {**token(text, -ord(text) / 100), "top_logprobs": tops}


def letters(text: str = "xé", **how: Any) -> FakeEngine:
    """An engine that says a text letter by letter."""
    engine = FakeEngine(pieces=list(text))
    for name, value in how.items():
        setattr(engine, name, value)
    return engine


async def test_a_chats_tokens_have_their_rivals_and_their_bytes() -> None:
    """Each token, its logarithm, its bytes, and as many of the most likely tokens as were asked for."""
    async with serving(letters()) as rig:
        response = await rig.post(CHAT, chat(logprobs=True, top_logprobs=2))
        choice = response.json()["choices"][0]
        assert choice["logprobs"] == {"content": [entry("x", 2), entry("é", 2)]}
        assert choice["logprobs"]["content"][1]["bytes"] == [0xC3, 0xA9]
        choice = (await rig.post(CHAT, chat(logprobs=True))).json()["choices"][0]
        assert choice["logprobs"] == {"content": [entry("x"), entry("é")]}
        choice = (await rig.post(CHAT, chat(logprobs=False))).json()["choices"][0]
        assert choice["logprobs"] is None
        assert [seen.params.logprobs for seen in rig.engine.seen] == [2, 0, None]


async def test_the_end_token_is_a_token_like_the_others() -> None:
    """As in vLLM: it has no text, and is among the tokens and their log-probabilities."""
    async with serving(letters(end_token_id=ord("$"))) as rig:
        choice = (await rig.post(CHAT, chat(logprobs=True, return_token_ids=True))).json()["choices"][0]
        assert choice["message"]["content"] == "xé"
        assert choice["token_ids"] == [ord("x"), ord("é"), ord("$")]
        assert choice["logprobs"]["content"] == [entry("x"), entry("é"), entry("$")]
        choice = (await rig.post(COMPLETIONS, {"prompt": "a", "logprobs": 0})).json()["choices"][0]
        assert choice["logprobs"]["tokens"] == ["x", "é", "$"]
        assert choice["logprobs"]["text_offset"] == [0, 1, 2]


async def test_a_streamed_chat_has_them_beside_their_text() -> None:
    """The chunks' entries joined are the whole answer's; the role and the end have none."""
    async with serving(letters(end_token_id=ord("$"))) as rig:
        response = await rig.post(CHAT, chat(logprobs=True, top_logprobs=1, stream=True))
    choices = [event["choices"][0] for event in events_of(response.text)]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["logprobs"] for choice in (choices[0], choices[-1])] == [None, None]
    said = [part for choice in choices[1:-1] for part in choice["logprobs"]["content"]]
    assert said == [entry("x", 1), entry("é", 1), entry("$", 1)]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "xé"
    assert (choices[-1]["delta"], choices[-1]["finish_reason"]) == ({}, "stop")


LOGPROBS = {
    "tokens": ["x", "é"],
    "token_logprobs": [-1.2, -2.33],
    "text_offset": [0, 1],
    "top_logprobs": [{"a": 0.0, "b": -0.001, "x": -1.2}, {"a": 0.0, "b": -0.001, "é": -2.33}],
}


async def test_a_completions_tokens_have_their_place_in_the_text() -> None:
    """Four lists of equal length; a token is among its rivals whatever its rank."""
    async with serving(letters()) as rig:
        choice = (await rig.post(COMPLETIONS, {"prompt": "pq", "logprobs": 2})).json()["choices"][0]
        assert choice["logprobs"] == LOGPROBS
        response = await rig.post(COMPLETIONS, {"prompt": "pq", "logprobs": 2, "stream": True})
        parts = [event["choices"][0]["logprobs"] for event in events_of(response.text)]
        assert joined(parts) == LOGPROBS


def joined(parts: list[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    """The lists of a stream's chunks, one behind the other."""
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}


ECHOED = {
    "tokens": ["^", "p", "q"],
    "token_logprobs": [None, -1.12, -1.13],
    "text_offset": [0, 0, 1],
    "top_logprobs": [None, {"a": 0.0, "p": -1.12}, {"a": 0.0, "q": -1.13}],
}
ANSWERED = {
    "tokens": ["x", "é", "$"],
    "token_logprobs": [-1.2, -2.33, -0.36],
    "text_offset": [2, 3, 4],
    "top_logprobs": [{"a": 0.0, "x": -1.2}, {"a": 0.0, "é": -2.33}, {"a": 0.0, "$": -0.36}],
}


async def test_an_echoed_prompt_has_them_too() -> None:
    """What loglikelihood needs: the prompt's tokens first, the very first without one; what the tokenizer added has no
    room in the text."""
    body = {"prompt": "pq", "logprobs": 1, "echo": True}
    async with serving(letters(end_token_id=ord("$"))) as rig:
        choice = (await rig.post(COMPLETIONS, body)).json()["choices"][0]
        assert choice["text"] == "pqxé"
        assert choice["logprobs"] == {name: ECHOED[name] + ANSWERED[name] for name in ECHOED}
        assert rig.engine.seen[0].params.prompt_logprobs == 1
        first, *others = events_of((await rig.post(COMPLETIONS, {**body, "stream": True})).text)
        assert first["choices"][0]["text"] == "pq"
        assert first["choices"][0]["logprobs"] == ECHOED
        parts = [event["choices"][0]["logprobs"] for event in others]
        assert joined(parts) == ANSWERED


async def test_nothing_is_generated_for_max_tokens_0() -> None:
    """With echo: the prompt, its log-probabilities, no token, and the reason `length`."""
    body = {"prompt": ["pq", "r"], "logprobs": 1, "echo": True, "max_tokens": 0}
    async with serving(letters(end_token_id=ord("$"))) as rig:
        answer = (await rig.post(COMPLETIONS, body)).json()
        first, second = answer["choices"]
        assert (first["text"], first["finish_reason"], first["stop_reason"]) == ("pq", "length", None)
        assert first["logprobs"] == ECHOED
        assert (second["text"], second["logprobs"]["token_logprobs"]) == ("r", [None, -1.14])
        one = (await rig.post(COMPLETIONS, {**body, "prompt": [7]})).json()["choices"][0]
        assert (one["text"], one["logprobs"]["token_logprobs"]) == ("\x07", [None])
        assert answer["usage"]["completion_tokens"] == 0
        events = events_of((await rig.post(COMPLETIONS, {**body, "prompt": "pq", "stream": True})).text)
    assert [event["choices"][0]["text"] for event in events] == ["pq", ""]
    assert events[-1]["choices"][0]["finish_reason"] == "length"


PROMPT_LOGPROBS = [
    None,
    {
        "97": {"logprob": 0.0, "rank": 1, "decoded_token": "a"},
        "112": {"logprob": -1.12, "rank": 30, "decoded_token": "p"},
    },
]


async def test_a_prompts_tokens_by_their_ids() -> None:
    """vLLM's prompt_logprobs: of a completion in each choice, of a chat at the top."""
    async with serving(letters()) as rig:
        body = {"prompt": "p", "prompt_logprobs": 1, "n": 2}
        answer = (await rig.post(COMPLETIONS, body)).json()
        assert answer["choices"][0]["prompt_logprobs"] == PROMPT_LOGPROBS
        assert answer["choices"][0]["logprobs"] is None
        answer = (await rig.post(CHAT, chat(prompt_logprobs=0))).json()
        assert answer["prompt_logprobs"][0] is None
        assert answer["prompt_logprobs"][1] == {"117": {"logprob": -1.17, "rank": 30, "decoded_token": "u"}}
        assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_may_be_spelled_by_their_ids(stream: bool) -> None:
    """return_tokens_as_token_ids: where two tokens would read alike; their bytes stay."""
    async with serving(letters()) as rig:
        fields = {"logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": True, "stream": stream}
        text = (await rig.post(CHAT, chat(**fields))).text
        assert '"token":"token_id:120","logprob":-1.2,"bytes":[120]' in text
        assert '"token":"token_id:97","logprob":0.0,"bytes":[97]' in text
        fields = {"prompt": "p", "logprobs": 1, "return_tokens_as_token_ids": True, "stream": stream}
        text = (await rig.post(COMPLETIONS, fields)).text
        assert '"tokens":["token_id:120"' in text
        assert '{"token_id:97":0.0,"token_id:120":-1.2}' in text


async def test_a_long_answers_body_is_made_aside() -> None:
    """Thousands of tokens with log-probabilities come out the same, by way of a worker thread."""
    prompt = "p" * 3000
    async with serving(letters()) as rig:
        answer = (await rig.post(COMPLETIONS, {"prompt": prompt, "echo": True, "logprobs": 1})).json()
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [None, *[-1.12] * 3000, -1.2, -2.33]
    assert logprobs["text_offset"][-3:] == [2999, 3000, 3001]
