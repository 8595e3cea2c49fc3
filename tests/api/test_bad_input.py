"""Every mistake in a body is a 400 with OpenAI's error object, whose message and `param` name the field."""

import logging
from typing import Any

import pytest

from .rig import chat, error_of, serving

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

SAMPLING: list[tuple[str, Any, str]] = [
    ("max_tokens", 0, "max_tokens must be an integer of at least 1, not 0."),
    ("max_tokens", -(10**9), "max_tokens must be"),
    ("max_tokens", "5", "max_tokens is malformed: expected `int | null`, got `str`."),
    ("max_tokens", 1.5, "max_tokens is malformed"),
    ("max_tokens", True, "max_tokens is malformed"),
    ("max_tokens", 10**30, "max_tokens must be"),
    ("min_tokens", -1, "min_tokens must be"),
    ("temperature", -0.1, "temperature must be a number from 0 to 2, not -0.1."),
    ("temperature", 2.1, "temperature must be"),
    ("temperature", "hot", "temperature is malformed: expected `float | null`, got `str`."),
    ("top_p", 0, "top_p must be a number above 0, at most 1, not 0"),
    ("top_p", 1.1, "top_p must be"),
    ("top_k", -2, "top_k must be"),
    ("top_k", 0.5, "top_k is malformed"),
    ("min_p", 2, "min_p must be"),
    ("seed", 2**63, "seed must be a 64-bit integer"),
    ("seed", [], "seed is malformed"),
    ("stop", ["a", "b", "c", "d", "e"], "stop takes at most 4 strings, not 5."),
    ("stop", ["x"] * 100_000, "stop takes at most 4 strings, not 100000."),
    ("stop", "", "stop must be"),
    ("stop", [""], "stop must be"),
    ("stop", [3], "stop[0] is malformed"),
    ("stop_token_ids", [-1], "stop_token_ids[0] is malformed: expected `int` >= 0."),
    ("stop_token_ids", [1] * 1025, "stop_token_ids is malformed: expected `array` of length <= 1024."),
    ("stop_token_ids", ["a"], "stop_token_ids[0] is malformed"),
    ("ignore_eos", 1, "ignore_eos is malformed"),
    ("stream", "yes", "stream is malformed"),
    ("stream_options", {"include_usage": True}, "stream_options is only allowed together with stream: true."),
    ("stream_options", 3, "stream_options is malformed"),
    ("model", 3, "model is malformed"),
    ("n", 0, "n must be an integer from 1 to 128, not 0."),
    ("n", 10**9, "n must be an integer from 1 to 128, not 1000000000."),
    ("n", -1, "n must be an integer from 1 to 128, not -1."),
    ("n", 1.5, "n is malformed"),
    ("best_of", 3, "best_of must equal n"),
    ("use_beam_search", "yes", "use_beam_search is malformed"),
    ("length_penalty", 11, "length_penalty must be a number from -10 to 10"),
    ("timeout", 0, "timeout must be a number of seconds above 0, not 0.0."),
    ("timeout", -1.5, "timeout must be a number of seconds above 0, not -1.5."),
    ("timeout", "soon", "timeout is malformed"),
    ("max_queue_time", 0, "max_queue_time must be a number of seconds above 0"),
    ("priority", 2**31, "priority must be an integer from -2147483647 to 2147483647"),
    ("priority", "high", "priority is malformed"),
    ("cache_salt", "", "cache_salt must have 1 to 128 characters, none of them NUL, '/', '@' or"),
    ("cache_salt", "x" * 129, "cache_salt must have"),
    ("cache_salt", "a\0b", "cache_salt must have"),
    ("cache_salt", "a/b", "cache_salt must have"),
    ("cache_salt", "a@b", "cache_salt must have"),
    ("cache_salt", "a\\b", "cache_salt must have"),
    ("cache_salt", 5, "cache_salt is malformed"),
    ("request_id", "", "request_id must be 1 to 128 letters"),
    ("request_id", "a/b", "request_id must be 1 to 128 letters"),
    ("request_id", 5, "request_id is malformed"),
    ("echo", True, "echo is not supported"),
    ("suffix", "z", "suffix is not supported"),
    ("logprobs", True, "logprobs is not supported"),
]

CHAT_ONLY: list[tuple[dict[str, Any], str, str]] = [
    ({}, "messages", "messages is required."),
    ({"messages": []}, "messages", "messages must hold at least one message."),
    ({"messages": "Hi"}, "messages", "messages is malformed: expected `array`, got `str`."),
    ({"messages": [3]}, "messages[0]", "messages[0] is malformed: expected `object`, got `int`."),
    ({"messages": [{"content": "Hi"}]}, "messages[0].role", "messages[0].role is required."),
    ({"messages": [{"role": "", "content": "Hi"}]}, "messages[0].role", "messages[0].role is malformed"),
    ({"messages": [{"role": 1, "content": "Hi"}]}, "messages[0].role", "messages[0].role is malformed"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "messages[0].content is required."),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "messages[0].content is malformed"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
        "messages[0].content[0].type",
        "messages[0].content[0].type must be 'text', not 'image_url': only text can be read.",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
        "messages[0].content[0].text is required.",
    ),
    (chat(max_completion_tokens=0), "max_completion_tokens", "max_completion_tokens must be an integer of at least 1"),
    (chat(max_tokens=3, min_tokens=4), "min_tokens", "min_tokens (4) must be at most max_tokens (3)."),
    (chat(tools=[{"type": "function"}]), "tools", "tools is not supported"),
    (
        chat(response_format={"type": "json_object"}),
        "response_format.type",
        "response_format.type must be 'text', not 'json_object'.",
    ),
    (
        chat(stream=True, stream_options={"include_usage": 1}),
        "stream_options.include_usage",
        "stream_options.include_usage is malformed",
    ),
]

PROMPTS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "prompt", "prompt is required."),
    ({"prompt": None}, "prompt", "prompt is malformed"),
    ({"prompt": 5}, "prompt", "prompt is malformed"),
    ({"prompt": {"a": 1}}, "prompt", "prompt is malformed"),
    ({"prompt": []}, "prompt", "prompt must not be an empty list."),
    ({"prompt": [[]]}, "prompt[0]", "prompt[0] must not be an empty list."),
    ({"prompt": [[1], []]}, "prompt[1]", "prompt[1] must not be an empty list."),
    ({"prompt": ["a", 1]}, "prompt[1]", "prompt[1] is malformed: prompt must be all texts, all token ids, or all"),
    ({"prompt": [1, [2]]}, "prompt[1]", "prompt[1] is malformed"),
    ({"prompt": [-1]}, "prompt[0]", "prompt[0] is malformed: expected `int` >= 0."),
    ({"prompt": [[1, -5]]}, "prompt[0][1]", "prompt[0][1] is malformed: expected `int` >= 0."),
    ({"prompt": [10**12]}, "prompt[0]", "prompt[0] is malformed"),
    ({"prompt": [1.5]}, "prompt[0]", "prompt[0] is malformed"),
    ({"prompt": [[["a"]]]}, "prompt[0][0]", "prompt[0][0] is malformed"),
    ({"prompt": [1, 5000]}, "prompt", "5000 is not in the vocabulary."),
]

NOT_JSON = [
    (b"", "The body is not valid JSON"),
    (b"{", "The body is not valid JSON"),
    (b"hello", "The body is not valid JSON"),
    (b'{"messages": NaN}', "The body is not valid JSON"),
    (b'{"model":"\xff"}', "The body is not valid JSON"),
    (b"[]", "The body must be a JSON object: expected `object`, got `array`."),
    (b"null", "The body must be a JSON object"),
    (b'{"unknown":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "The body is not valid JSON: it is nested too deeply."),
]


async def refused(path: str, body: Any) -> dict[str, Any]:
    """The error of a body that must be refused before the engine hears of it."""
    async with serving() as rig:
        response = await rig.post(path, body)
        assert response.status_code == 400
        assert response.headers["content-type"] == "application/json"
        assert not rig.engine.open
        assert (await rig.client.get("/health")).status_code == 200
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize(("field", "value", "message"), SAMPLING)
@pytest.mark.parametrize(("path", "body"), [(CHAT, chat()), (COMPLETIONS, {"prompt": "a"})])
async def test_a_sampling_field_out_of_range_is_named(
    path: str, body: dict[str, Any], field: str, value: Any, message: str
) -> None:
    """Wrong types and values out of range, on both routes."""
    error = await refused(path, {**body, field: value})
    assert error["message"].startswith(message)
    assert error["param"].split("[")[0] == field


@pytest.mark.parametrize(("body", "param", "message"), CHAT_ONLY)
async def test_a_malformed_chat_names_the_field(body: dict[str, Any], param: str, message: str) -> None:
    """Messages, their roles and contents, and what only a chat has."""
    error = await refused(CHAT, body)
    assert error["message"].startswith(message)
    assert error["param"] == param


@pytest.mark.parametrize(("body", "param", "message"), PROMPTS)
async def test_a_malformed_prompt_names_the_place(body: dict[str, Any], param: str, message: str) -> None:
    """Empty, mixed, negative and foreign prompts."""
    error = await refused(COMPLETIONS, body)
    assert error["message"].startswith(message)
    assert error["param"] == param


@pytest.mark.parametrize(("body", "message"), NOT_JSON, ids=range(len(NOT_JSON)))
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
async def test_a_body_that_is_no_json_object_is_refused(path: str, body: bytes, message: str) -> None:
    """Broken JSON, bytes that are no UTF-8, another value than an object, and endless nesting."""
    error = await refused(path, body)
    assert error["message"].startswith(message)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_unknown_fields_are_ignored_and_their_names_logged_at_debug(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The request is answered; the debug log has the names, never the values."""
    caplog.set_level(logging.DEBUG, "triolet.api")
    body = {"logit_bias": {"5": 1}, "colour": "secret-value", "prompt": "a", **chat()}
    async with serving() as rig:
        assert (await rig.post(path, body)).status_code == 200
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "ignored unknown fields: 'colour', 'logit_bias'" in text
    assert "secret-value" not in text


async def test_a_body_over_the_limit_is_refused_whether_announced_or_not() -> None:
    """413 says the limit; a client that sends it all the same still gets to read the answer."""

    async def chunks() -> Any:
        for _ in range(50):
            yield b"x" * 100

    async with serving(max_body_size=1000) as rig:
        for path in (CHAT, "/tokenize"):
            for content in (b"x" * 300_000, chunks()):
                response = await rig.client.post(path, content=content)
                assert response.status_code == 413
                assert error_of(response)["message"] == (
                    "The body of a request may have at most 1000 bytes (--max-body-size)."
                )
        assert (await rig.post(CHAT, chat())).status_code == 200
