"""POST /v1/responses over real sockets and a fake engine: what is answered, and what is refused."""

from typing import Any

import pytest

from tests.api.fake_engine import FakeEngine, overloaded
from tests.api.rig import Rig, error_of, serving
from triolet.engine.core.errors import RequestFailed
from triolet.engine.core.events import FinishReason

from .asking import asked, events_of

PATH = "/v1/responses"
TEXT = "Hello, wörld 🌍!"


async def test_a_plain_answer() -> None:
    """The object has what was asked, what was said, how many tokens it took, and can be read again."""
    engine = FakeEngine()
    engine.cached_tokens = 4
    async with serving(engine) as rig:
        response = await rig.post(PATH, asked(instructions="Be brief.", metadata={"a": "b"}, temperature=0.5))
        body = response.json()
        assert response.status_code == 200
        assert body["id"].startswith("resp_")
        assert (body["object"], body["status"], body["model"]) == ("response", "completed", "fake")
        assert (body["instructions"], body["metadata"], body["temperature"]) == ("Be brief.", {"a": "b"}, 0.5)
        (item,) = body["output"]
        assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
        assert item["content"] == [{"type": "output_text", "text": TEXT, "annotations": [], "logprobs": []}]
        prompt = "<system>Be brief.<user>Hi<assistant>"
        assert body["usage"] == {
            "input_tokens": len(prompt),
            "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "output_tokens": 4,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": len(prompt) + 4,
        }
        assert (await rig.client.get(f"{PATH}/{body['id']}")).json() == body
        assert engine.seen[0].params.temperature == 0.5
        assert engine.seen[0].params.max_tokens is None


async def test_a_stream() -> None:
    """Every event in its order and numbered; the deltas add up; the last one has the response, which is stored."""
    async with serving() as rig:
        response = await rig.post(PATH, asked(stream=True))
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        events = events_of(response.text)
        assert [event["type"].removeprefix("response.") for event in events] == [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            *["output_text.delta"] * 4,
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed",
        ]
        assert "".join(event["delta"] for event in events[4:8]) == TEXT == events[8]["text"]
        assert {event.get("item_id", events[2]["item"]["id"]) for event in events} == {events[2]["item"]["id"]}
        assert (events[0]["response"]["status"], events[0]["response"]["output"]) == ("in_progress", [])
        last = events[-1]["response"]
        assert (last["status"], last["output"][0]) == ("completed", events[-2]["item"])
        assert (await rig.client.get(f"{PATH}/{last['id']}")).json() == last


@pytest.mark.parametrize(
    ("reason", "strict", "status", "details"),
    [
        (FinishReason.LENGTH, False, "incomplete", {"reason": "max_output_tokens"}),
        (FinishReason.TIMEOUT, False, "incomplete", {"reason": "timeout"}),
        (FinishReason.TIMEOUT, True, "incomplete", {"reason": "max_output_tokens"}),
        (FinishReason.REPETITION, False, "incomplete", {"reason": "repetition"}),
        (FinishReason.ABORT, False, "cancelled", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_was_cut(
    reason: FinishReason, strict: bool, status: str, details: Any, stream: bool
) -> None:
    """Its status says so, and its text so far is there; a stream ends with `response.incomplete`."""
    engine = FakeEngine()
    engine.finish_reason = reason
    async with serving(engine, strict_finish_reasons=strict) as rig:
        response = await rig.post(PATH, asked(stream=stream))
        body = response.json() if not stream else events_of(response.text)[-1]["response"]
        assert not stream or events_of(response.text)[-1]["type"] == "response.incomplete"
        assert (body["status"], body["incomplete_details"]) == (status, details)
        assert body["output"][0]["status"] == "incomplete"
        assert body["output"][0]["content"][0]["text"] == TEXT


async def test_log_probabilities() -> None:
    """With `include` or `top_logprobs`, in deltas and in the whole, as chats have them."""
    async with serving(FakeEngine(pieces=["d", "e"])) as rig:
        for fields, num_top in (({"include": ["message.output_text.logprobs"]}, 0), ({"top_logprobs": 2}, 2)):
            events = events_of((await rig.post(PATH, asked(stream=True, **fields))).text)
            entries = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
            assert [entry["token"] for (entry,) in entries] == ["d", "e"]
            assert all(len(entry["top_logprobs"]) == num_top for (entry,) in entries)
            body = (await rig.post(PATH, asked(**fields))).json()
            assert body["output"][0]["content"][0]["logprobs"] == [entry for (entry,) in entries]
            assert events[-1]["response"]["output"][0]["content"] == body["output"][0]["content"]


async def test_an_answer_of_no_text() -> None:
    """Is a message with an empty text, so that a conversation can go on from it."""
    async with serving(FakeEngine(pieces=[""])) as rig:
        body = (await rig.post(PATH, asked())).json()
        assert body["output"][0]["content"][0]["text"] == ""
        events = events_of((await rig.post(PATH, asked(stream=True))).text)
        assert "response.output_text.delta" not in {event["type"] for event in events}


@pytest.mark.parametrize(
    ("fields", "param", "told"),
    [
        ({"input": None}, "input", "input is required"),
        ({"input": []}, "input", "input is required"),
        ({"input": 5}, "input", "expected"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content", "expected"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens must be an integer of at least 1"),
        ({"max_tokens": 5}, "max_tokens", "is not a field of this request"),
        ({"messages": []}, "messages", "is not a field of this request"),
        ({"temperature": 3}, "temperature", "from 0 to 2"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
        ({"include": ["secrets"]}, "include[0]", "must be one of"),
        ({"conversation": "c"}, "conversation", "not supported"),
        ({"prompt": {"id": "p"}}, "prompt", "not supported"),
        ({"context_management": [{"type": "compaction"}]}, "context_management", "not supported"),
        ({"truncation": "auto"}, "truncation", "must be 'disabled'"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "cannot be chosen"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "must be one of text, json_object, json_schema"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", "text.format.schema is required"),
        ({"text": {"form": 1}}, "text.form", "is not a field"),
        ({"background": True, "stream": True}, "background", "cannot be combined with stream"),
        ({"background": True, "store": False}, "background", "takes store: true"),
        ({"timeout": -1}, "timeout", "above 0"),
        ({"previous_response_id": "resp_x"}, "previous_response_id", "There is no response 'resp_x'"),
        ({"model": "gpt-4"}, "model", "does not exist"),
    ],
)
async def test_what_is_refused_is_named(fields: dict[str, Any], param: str, told: str) -> None:
    """As this API calls it, streamed or not; nothing is stored, and the engine hears of nothing."""
    async with serving() as rig:
        for stream in {False, bool(fields.get("stream"))} | ({True} if "background" not in fields else set()):
            response = await rig.post(PATH, asked(**{"stream": stream, **fields}))
            error = error_of(response)
            assert response.status_code == (404 if param in ("model", "previous_response_id") else 400)
            assert error["param"] == param
            assert told in error["message"]
        assert not rig.engine.seen


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"background": True}])
async def test_a_refusal_by_the_engine_is_a_status(fields: dict[str, Any]) -> None:
    """A prompt that is too long names `input`; a full queue says when to come back; nothing of it is stored."""
    engine = FakeEngine(max_model_len=10)
    async with serving(engine) as rig:
        error = error_of(await rig.post(PATH, asked(**fields)))
        assert (error["param"], error["code"]) == ("input", "context_length_exceeded")
        engine.refusal = overloaded()
        response = await rig.post(PATH, asked(**fields))
        assert (response.status_code, response.headers["retry-after"]) == (503, "7")
        assert rig.run.responses is not None
        assert rig.run.responses.num_stored == 0


async def test_a_stream_that_breaks() -> None:
    """What was said stays said; then `response.failed` says why, and the response is stored so."""
    engine = FakeEngine()
    engine.break_after = 2
    engine.error = RequestFailed("The request broke.")
    async with serving(engine) as rig:
        last = events_of((await rig.post(PATH, asked(stream=True))).text)[-1]
        assert last["type"] == "response.failed"
        body = last["response"]
        assert (body["status"], body["error"]) == (
            "failed",
            {"code": "server_error", "message": "The request broke."},
        )
        assert body["output"][0]["content"][0]["text"] == "Hello, "
        assert (await rig.client.get(f"{PATH}/{body['id']}")).json() == body
        response = await rig.post(PATH, asked())
        assert response.status_code == 500
        assert error_of(response)["message"] == "The request broke."


async def test_a_conversation_goes_on_from_a_stored_response() -> None:
    """With all that was said before, the calls' instructions apart; one that was not stored cannot be continued."""
    async with serving() as rig:
        first = (await rig.post(PATH, asked(instructions="One."))).json()
        second = (await rig.post(PATH, asked(input="More", previous_response_id=first["id"], store=False))).json()
        third = (await rig.post(PATH, asked(input="Other", previous_response_id=first["id"], stream=True))).text
        assert second["previous_response_id"] == first["id"]
        assert [message["content"] for message in rig.engine.seen[1].prompt.messages] == ["Hi", TEXT, "More"]  # type: ignore[union-attr]
        assert [message["content"] for message in rig.engine.seen[2].prompt.messages] == ["Hi", TEXT, "Other"]  # type: ignore[union-attr]
        fourth = asked(previous_response_id=events_of(third)[-1]["response"]["id"], instructions="Four.")
        await rig.post(PATH, fourth)
        said = [message["content"] for message in rig.engine.seen[3].prompt.messages]  # type: ignore[union-attr]
        assert said == ["Four.", "Hi", TEXT, "Other", TEXT, "Hi"]
        assert (await rig.post(PATH, asked(previous_response_id=second["id"]))).status_code == 404
        assert (await rig.client.get(f"{PATH}/{second['id']}")).status_code == 404


async def test_a_chain_is_bounded_like_a_body() -> None:
    """--max-body-size holds for what a conversation has gathered, too."""
    async with serving(max_body_size=1200) as rig:
        body = (await rig.post(PATH, asked(input="a" * 1000))).json()
        response = await rig.post(PATH, asked(previous_response_id=body["id"]))
        assert response.status_code == 400
        assert error_of(response)["param"] == "previous_response_id"
        assert "has more than 1200 bytes (--max-body-size)" in error_of(response)["message"]


async def test_counting_tokens() -> None:
    """As many as the model would read, what is continued included; nothing is generated or stored."""
    async with serving() as rig:
        first = (await rig.post(PATH, asked())).json()
        body = asked(input="More", previous_response_id=first["id"], instructions="Be brief.")
        response = await rig.post(PATH + "/input_tokens", body)
        prompt = f"<system>Be brief.<user>Hi<assistant>{TEXT}<user>More<assistant>"
        assert response.json() == {"object": "response.input_tokens", "input_tokens": len(prompt)}
        assert len(rig.engine.seen) == 1
        error = error_of(await rig.post(PATH + "/input_tokens", asked(input=[{"role": "x", "content": "a"}])))
        assert error["param"] == "input[0].role"


async def stored_ids(rig: Rig, ids: list[str]) -> list[str]:
    return [each for each in ids if (await rig.client.get(f"{PATH}/{each}")).status_code == 200]


async def test_the_store_has_a_size() -> None:
    """--response-store-size: the oldest go; 0 keeps none, and takes no background requests."""
    async with serving(response_store_size=6000) as rig:
        ids = [(await rig.post(PATH, asked())).json()["id"] for _ in range(4)]
        assert await stored_ids(rig, ids) == ids[2:]
        assert rig.run.responses is not None
        assert rig.run.responses.num_stored_bytes <= 6000
    async with serving(response_store_size=0) as rig:
        body = (await rig.post(PATH, asked())).json()
        assert body["status"] == "completed"
        assert await stored_ids(rig, [body["id"]]) == []
        error = error_of(await rig.post(PATH, asked(background=True)))
        assert "--response-store-size" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("size", "is_kept"), [(0, False), (3000, False), (100_000, True)])
async def test_what_is_larger_than_the_store_says_that_it_was_not_kept(stream: bool, size: int, is_kept: bool) -> None:
    """`store` of the whole response is false then, and reading it is a 404; a stream begins with what was asked for."""
    async with serving(response_store_size=size) as rig:
        answer = await rig.post(PATH, asked(input="Hi " * 1000, stream=stream))
        assert answer.status_code == 200
        if stream:
            events = events_of(answer.text)
            assert events[0]["response"]["store"] is True
            body = events[-1]["response"]
        else:
            body = answer.json()
        assert (body["status"], body["store"]) == ("completed", is_kept)
        read = await rig.client.get(f"{PATH}/{body['id']}")
        assert read.status_code == (200 if is_kept else 404)
        if is_kept:
            assert read.json() == body
        again = await rig.post(PATH, asked(previous_response_id=body["id"]))
        assert again.status_code == (200 if is_kept else 404)
