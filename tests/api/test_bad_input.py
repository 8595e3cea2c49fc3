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
    ("presence_penalty", 2.5, "presence_penalty must be a number from -2 to 2, not 2.5."),
    ("frequency_penalty", -3, "frequency_penalty must be a number from -2 to 2"),
    ("repetition_penalty", 1e-37, "repetition_penalty must be a number from 1e-06 to 1e+06, not 1e-37"),
    ("repetition_penalty", 0, "repetition_penalty must be a number from 1e-06 to 1e+06, not 0"),
    ("logit_bias", {"a": 1}, "logit_bias must be a map from token ids to numbers, not 'a'."),
    ("logit_bias", {"-1": 1}, "logit_bias must be a map from token ids of at least 0"),
    ("logit_bias", {"1000": 1}, "logit_bias must name token ids from 0 to 999, not 1000."),
    ("logit_bias", {"5": "x"}, "logit_bias[...] is malformed: expected `float`, got `str`."),
    ("logit_bias", [5], "logit_bias is malformed"),
    ("logit_bias", {str(i): 1 for i in range(1025)}, "logit_bias is malformed: expected `object` of length <= 1024."),
    ("allowed_token_ids", [], "allowed_token_ids must be a list of token ids that is not empty"),
    ("allowed_token_ids", [-1], "allowed_token_ids[0] is malformed: expected `int` >= 0."),
    ("allowed_token_ids", [1000], "allowed_token_ids must name token ids from 0 to 999, not 1000."),
    ("allowed_token_ids", [1] * 1001, "allowed_token_ids may name at most 1000 tokens: there are no more."),
    ("bad_words", [""], "bad_words must be a list of strings, none of them empty or blank, not ''."),
    ("bad_words", ["x"] * 129, "bad_words takes at most 128 words, not 129."),
    ("bad_words", "x", "bad_words is malformed: expected `array | null`, got `str`."),
    ("prompt_logprobs", 21, "prompt_logprobs must be an integer from 0 to 20, not 21."),
    ("prompt_logprobs", -1, "prompt_logprobs must be an integer from 0 to 20"),
    ("skip_special_tokens", 1, "skip_special_tokens is malformed"),
    ("spaces_between_special_tokens", "no", "spaces_between_special_tokens is malformed"),
    ("include_stop_str_in_output", 0, "include_stop_str_in_output is malformed"),
    ("truncate_prompt_tokens", -2, "truncate_prompt_tokens is malformed: expected `int` >= -1."),
    ("truncate_prompt_tokens", 4097, "truncate_prompt_tokens must be at most 4096, the tokens that the model takes"),
    ("truncate_prompt_tokens", 0, "The prompt is empty"),
    ("truncation_side", "middle", "truncation_side is malformed: invalid enum value 'middle'."),
    ("repetition_detection", {}, "repetition_detection.max_pattern_size is required."),
    ("repetition_detection", {"max_pattern_size": 0}, "repetition_detection: max_pattern_size must be from 1 to 1024"),
    (
        "repetition_detection",
        {"max_pattern_size": 5, "min_count": 1},
        "repetition_detection: min_count must be at least",
    ),
    ("return_token_ids", "yes", "return_token_ids is malformed"),
    ("return_tokens_as_token_ids", 1, "return_tokens_as_token_ids is malformed"),
    ("add_special_tokens", 1, "add_special_tokens is malformed"),
    ("metadata", "x", "metadata is malformed: expected `object | null`, got `str`."),
    ("echo", "yes", "echo is malformed"),
    ("response_format", {"type": "yaml"}, "response_format.type must be one of text, json_object, json_schema, struct"),
    ("response_format", {"type": "json_schema"}, "response_format.json_schema is required with the type json_schema."),
    ("response_format", {"type": "json_schema", "json_schema": {}}, "response_format.json_schema.schema is required."),
    ("response_format", {"type": "structural_tag"}, "response_format.format is required with the type structural_tag."),
    ("structured_outputs", {}, "structured_outputs takes exactly one of json, regex, choice, grammar, json_object"),
    ("structured_outputs", {"regex": "a", "choice": ["b"]}, "structured_outputs takes exactly one of"),
    ("structured_outputs", {"choice": []}, "choice must be a list of 1 to 1024 strings."),
    ("structured_outputs", {"regex": ""}, "A regular expression must be a string that is not empty."),
    ("structured_outputs", {"json": "{"}, "structured_outputs.json is not JSON"),
    ("structured_outputs", {"structural_tag": "[]"}, "structured_outputs.structural_tag must be a JSON object."),
    (
        "structured_outputs",
        {"json": {}, "whitespace_pattern": "x"},
        "structured_outputs.whitespace_pattern is not supported",
    ),
]

NAMED_OTHERWISE = {"truncate_prompt_tokens": ("prompt", "messages")}
"""A prompt cut to nothing is an empty prompt."""

TOGETHER: list[tuple[str, dict[str, Any], str, str]] = [
    (CHAT, {"top_logprobs": 2}, "top_logprobs", "top_logprobs is only allowed together with logprobs: true."),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs must be an integer from 0 to 20"),
    (CHAT, {"logprobs": True, "top_logprobs": -1}, "top_logprobs", "top_logprobs must be an integer from 0 to 20"),
    (CHAT, {"logprob_token_ids": [3]}, "logprob_token_ids", "logprob_token_ids is only allowed together with logprobs"),
    (
        COMPLETIONS,
        {"logprobs": 1, "logprob_token_ids": [1000]},
        "logprob_token_ids",
        "Token ids must be integers from 0 to 999",
    ),
    (CHAT, {"logprobs": 3}, "logprobs", "logprobs is malformed: expected `bool | null`, got `int`."),
    (COMPLETIONS, {"logprobs": True}, "logprobs", "logprobs is malformed: expected `int | null`, got `bool`."),
    (COMPLETIONS, {"logprobs": 21}, "logprobs", "logprobs must be an integer from 0 to 20, not 21."),
    (COMPLETIONS, {"logprobs": 21, "echo": True}, "logprobs", "logprobs must be an integer from 0 to 20, not 21."),
    (COMPLETIONS, {"top_logprobs": 3}, "top_logprobs", "top_logprobs is a chat's"),
    (COMPLETIONS, {"echo": True, "use_beam_search": True}, "echo", "echo cannot be combined with use_beam_search."),
    (COMPLETIONS, {"echo": True, "suffix": "x"}, "suffix", "suffix cannot be combined with echo."),
    (COMPLETIONS, {"prompt": [1], "suffix": "x"}, "suffix", "suffix takes a prompt that is a text, not token ids."),
    (COMPLETIONS, {"echo": True, "max_tokens": -1}, "max_tokens", "max_tokens must be an integer of at least 1"),
    (CHAT, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "prompt_logprobs cannot be streamed"),
    (COMPLETIONS, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "prompt_logprobs cannot be streamed"),
    (
        CHAT,
        {"continue_final_message": True},
        "continue_final_message",
        "continue_final_message takes add_generation_prompt: false",
    ),
    (CHAT, {"documents": ["x"]}, "documents[0]", "documents[0] is malformed: expected `object`, got `str`."),
    (
        CHAT,
        {"response_format": {"type": "json_object"}, "structured_outputs": {"json": {}}},
        "structured_outputs",
        "Give either response_format or structured_outputs: an answer has one form.",
    ),
]

DEEP = '{"a":' * 900 + "1" + "}" * 900

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
    (chat(tools=[{"type": "function"}]), "tools[0].function", "tools[0].function is required"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}]},
        "messages[0].tool_calls[0].function.arguments",
        "messages[0].tool_calls[0].function.arguments must be the text of a JSON object.",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": DEEP}}]}]},
        "messages[0].tool_calls[0].function.arguments",
        "messages[0].tool_calls[0].function.arguments may be nested 100 deep.",
    ),
    (
        {"messages": [{"role": "assistant", "content": [{"type": "refusal"}]}]},
        "messages[0].content[0].refusal",
        "messages[0].content[0].refusal is required.",
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
    assert error["param"].split("[")[0].split(".")[0] in (field, *NAMED_OTHERWISE.get(field, ()))


@pytest.mark.parametrize(("path", "fields", "param", "message"), TOGETHER)
async def test_fields_that_do_not_go_together_are_named(
    path: str, fields: dict[str, Any], param: str, message: str
) -> None:
    """What one route lacks, and what cannot be had at the same time."""
    error = await refused(path, {**({"prompt": "a"} if path == COMPLETIONS else chat()), **fields})
    assert error["message"].startswith(message)
    assert error["param"] == param


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
    body = {"voice": {"5": 1}, "colour": "secret-value", "prompt": "a", **chat()}
    async with serving() as rig:
        assert (await rig.post(path, body)).status_code == 200
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "ignored unknown fields: 'colour'" in text
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
