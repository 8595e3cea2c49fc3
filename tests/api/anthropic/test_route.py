"""POST /v1/messages over real sockets and a fake engine: what is answered, and what is refused."""

import json
from typing import Any

import pytest

from tests.api.fake_engine import FakeEngine, overloaded
from tests.api.rig import error_of, raw_post, read_until, serving
from triolet.engine.core.errors import RequestFailed
from triolet.engine.core.events import FinishReason

PATH = "/v1/messages"
TEXT = "Hello, wörld 🌍!"


def asked(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100, **fields}


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream; each is named as its data says."""
    events: list[dict[str, Any]] = []
    for block in text.split("\n\n"):
        if block:
            named, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert named == f"event: {events[-1]['type']}"
    return events


async def test_a_plain_answer() -> None:
    """A message of one block; what the cache spared is counted apart; the request has a name."""
    engine = FakeEngine()
    engine.cached_tokens = 4
    async with serving(engine) as rig:
        response = await rig.post(PATH, asked(system="Be brief.", stop_sequences=["x"], top_k=3))
        body = response.json()
        assert response.status_code == 200
        assert response.headers["request-id"] == response.headers["x-request-id"]
        assert body.pop("id").startswith("msg_")
        assert body == {
            "type": "message",
            "role": "assistant",
            "model": "fake",
            "content": [{"type": "text", "text": TEXT}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {
                "input_tokens": len("<system>Be brief.<user>Hi<assistant>") - 4,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 4,
                "output_tokens": 4,
            },
        }
        params = engine.seen[0].params
        assert (params.max_tokens, params.stop, params.top_k) == (100, ("x",), 3)


async def test_a_stream() -> None:
    """Every event in its order; the deltas add up."""
    async with serving() as rig:
        events = events_of((await rig.post(PATH, asked(stream=True))).text)
        assert [event["type"] for event in events] == [
            "message_start",
            "ping",
            "content_block_start",
            *["content_block_delta"] * 4,
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
        start = events[0]["message"]
        assert (start["content"], start["stop_reason"]) == ([], None)
        assert start["usage"]["input_tokens"] == len("<user>Hi<assistant>")
        assert events[2] == {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""},
        }
        assert "".join(event["delta"]["text"] for event in events[3:7]) == TEXT
        assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
        assert events[-2]["usage"]["output_tokens"] == 4


@pytest.mark.parametrize(
    ("reason", "stop_reason", "strict", "told"),
    [
        (FinishReason.LENGTH, None, False, ("max_tokens", None)),
        (FinishReason.STOP, "END", False, ("stop_sequence", "END")),
        (FinishReason.STOP, 7, False, ("end_turn", None)),
        (FinishReason.TIMEOUT, None, False, ("timeout", None)),
        (FinishReason.ABORT, "cancelled", False, ("abort", None)),
        (FinishReason.REPETITION, None, False, ("repetition", None)),
        (FinishReason.TIMEOUT, None, True, ("max_tokens", None)),
    ],
)
async def test_how_an_answer_ended(
    reason: FinishReason, stop_reason: str | int | None, strict: bool, told: tuple[str, str | None]
) -> None:
    """In Anthropic's words where it has one; else in ours, or with --strict-finish-reasons in its nearest."""
    engine = FakeEngine()
    engine.finish_reason, engine.stop_reason = reason, stop_reason
    async with serving(engine, strict_finish_reasons=strict) as rig:
        body = (await rig.post(PATH, asked())).json()
        assert (body["stop_reason"], body["stop_sequence"]) == told
        ended = events_of((await rig.post(PATH, asked(stream=True))).text)[-2]["delta"]
        assert (ended["stop_reason"], ended["stop_sequence"]) == told


async def test_an_answer_that_was_begun_is_gone_on_with() -> None:
    """A last turn of the assistant is continued, not answered."""
    async with serving() as rig:
        begun = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well,"}]
        assert (await rig.post(PATH, asked(messages=begun))).status_code == 200
        prompt = rig.engine.seen[0].prompt
        assert prompt.continue_final_message  # type: ignore[union-attr]
        assert not prompt.add_generation_prompt  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("thinking", "enabled"), [(None, False), ({"type": "disabled"}, False), ({"type": "adaptive"}, True)]
)
async def test_thinking_is_off_unless_it_is_asked_for(thinking: Any, enabled: bool) -> None:
    """The template is told."""
    async with serving() as rig:
        assert (await rig.post(PATH, asked(thinking=thinking))).status_code == 200
        assert rig.engine.seen[0].prompt.template_kwargs == {"enable_thinking": enabled}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fields", "param", "told"),
    [
        ({"max_tokens": None}, "max_tokens", "expected"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be an integer of at least 1"),
        ({"messages": []}, "messages", "at least one"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "is required"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type", "only text"),
        ({"temperature": 3}, "temperature", "from 0 to 2"),
        ({"top_p": 2}, "top_p", "at most 1"),
        ({"stop_sequences": ["a"] * 5}, "stop_sequences", "stop_sequences takes at most 4"),
        ({"container": "c"}, "container", "not supported"),
        ({"mcp_servers": [{}]}, "mcp_servers", "not supported"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses"}]}}, "context_management", "not supported"),
        ({"context_management": "all"}, "context_management", "not supported"),
        ({"speed": "fast"}, "speed", "must be 'standard'"),
        ({"thinking": {"type": "on"}}, "thinking.type", "must be enabled, adaptive or disabled"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens", "is required"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type", "must be json_schema"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema", "is required"),
        ({"n": 2}, "n", "is not a field of this request"),
        ({"output_config": {"form": 1}}, "output_config.form", "is not a field"),
        ({"timeout": -1}, "timeout", "above 0"),
    ],
)
async def test_what_is_refused_is_named(fields: dict[str, Any], param: str, told: str) -> None:
    """In Anthropic's shape, as this API calls it; the engine hears of nothing."""
    async with serving() as rig:
        response = await rig.post(PATH, asked(**fields))
        error = error_of(response)
        assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
        assert told in error["message"]
        assert not rig.engine.seen


@pytest.mark.parametrize("edits", [[], [{"type": "clear_thinking_20251015", "keep": "all"}], None])
async def test_edits_that_change_nothing_are_taken(edits: Any) -> None:
    """Coding agents ask that all thinking be kept."""
    async with serving() as rig:
        response = await rig.post(PATH, asked(context_management={"edits": edits}))
        assert response.status_code == 200


async def test_a_thread_is_refused_as_the_tool_runner_understands() -> None:
    """With the details by which Anthropic's client goes on without one; no other error has any."""
    async with serving() as rig:
        for path in (PATH, f"{PATH}/count_tokens"):
            told = {"messages": [{"role": "user", "content": "Hi"}], "thread": {"type": "create"}}
            response = await rig.post(path, told if path != PATH else asked(thread={"type": "create"}))
            assert (response.status_code, response.json()["type"]) == (400, "error")
            assert response.json()["error"] == {
                "message": "thread is not supported by this server: send the whole conversation.",
                "type": "invalid_request_error",
                "param": "thread",
                "code": "thread_unsupported_request",
                "details": {"error_code": "thread_unsupported_request"},
            }
        assert not rig.engine.seen
        assert "details" not in error_of(await rig.post(PATH, asked(container="c")))
        assert (await rig.post(PATH, asked(thread=None))).status_code == 200


async def test_errors_of_all_kinds_have_the_shape() -> None:
    """Before the body is read, from a Quart view, from the engine, and within a stream."""
    engine = FakeEngine(max_model_len=40)
    async with serving(engine, api_key=("key",), max_body_size=1000, headers={"x-api-key": "key"}) as rig:
        for path in (PATH, PATH + "/count_tokens"):
            response = await rig.post(path, asked(), headers={"x-api-key": "wrong"})
            assert (response.status_code, error_of(response)["type"]) == (401, "authentication_error")
            response = await rig.post(path, asked(system="a" * 2000))
            assert (response.status_code, error_of(response)["type"]) == (413, "request_too_large")
            response = await rig.post(path, asked(model="claude") if path == PATH else {"messages": [], "model": "x"})
            assert (response.status_code, error_of(response)["type"]) == (404, "not_found_error")
            response = await rig.client.get(path)
            assert (response.status_code, error_of(response)["code"]) == (405, "method_not_allowed")
            response = await rig.post(path, b"{")
            assert (response.status_code, error_of(response)["type"]) == (400, "invalid_request_error")
        assert (await rig.client.get(PATH + "/x")).json()["type"] == "error"
        error = error_of(await rig.post(PATH, asked(system="a" * 100)))
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
        engine.refusal = overloaded()
        response = await rig.post(PATH, asked())
        assert (response.status_code, response.headers["retry-after"]) == (503, "7")
        assert error_of(response)["type"] == "overloaded_error"
        engine.refusal, engine.break_after, engine.error = None, 2, RequestFailed("It broke.")
        response = await rig.post(PATH, asked())
        assert (response.status_code, error_of(response)["type"]) == (500, "api_error")
        events = events_of((await rig.post(PATH, asked(stream=True))).text)
        assert (events[-1]["type"], events[-1]["error"]["message"]) == ("error", "It broke.")


async def test_a_quiet_stream_is_kept_open_by_pings() -> None:
    """Of Anthropic's kind, before the first event too."""
    async with serving(FakeEngine(hold="queued"), ping_interval=0.01) as rig, await rig.connect() as stream:
        await stream.send_all(raw_post(PATH, asked(stream=True)))
        assert b"message_start" not in await read_until(stream, b'event: ping\ndata: {"type":"ping"}\n\n')


async def test_counting_tokens() -> None:
    """As many as the model would read; no max_tokens is needed, and nothing is generated."""
    async with serving() as rig:
        body = {"messages": [{"role": "user", "content": "Hi"}], "system": "Be brief."}
        response = await rig.post(PATH + "/count_tokens", body)
        assert response.json() == {"input_tokens": len("<system>Be brief.<user>Hi<assistant>")}
        assert not rig.engine.seen
        error = error_of(await rig.post(PATH + "/count_tokens", {"messages": [{"role": "x", "content": "a"}]}))
        assert error["param"] == "messages[0].role"


async def test_a_key_may_come_in_either_header() -> None:
    """`x-api-key` is as good as `Authorization` on every route; of both, `Authorization` counts."""
    async with serving(api_key=("key",)) as rig:
        for path in ("/v1/models", "/version"):
            assert (await rig.client.get(path, headers={"x-api-key": "key"})).status_code == 200
            assert (await rig.client.get(path, headers={"x-api-key": "wrong"})).status_code == 401
            both = {"x-api-key": "key", "authorization": "Bearer wrong"}
            assert (await rig.client.get(path, headers=both)).status_code == 401
