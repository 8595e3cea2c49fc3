"""Responses that run: in the background, cancelled, deleted, left; and whose they are."""

from typing import Any

import pytest
import trio
import trio.testing

from tests.api.fake_engine import FakeEngine
from tests.api.rig import Rig, error_of, raw_post, read_until, serving
from triolet.engine.core.errors import RequestFailed

from .asking import asked

PATH = "/v1/responses"
ONE, TWO = {"authorization": "Bearer one"}, {"authorization": "Bearer two"}


async def status_of(rig: Rig, response_id: str, **more: Any) -> str:
    body = (await rig.client.get(f"{PATH}/{response_id}", **more)).json()
    return str(body["status"])


async def until_ended(rig: Rig) -> None:
    while rig.run.lifecycle.open_requests:
        await trio.testing.wait_all_tasks_blocked(0.001)


async def test_a_background_response_can_be_watched() -> None:
    """Its client is answered as soon as the engine has it; it is read while it grows, and when it has ended."""
    engine = FakeEngine(hold="decode")
    async with serving(engine) as rig:
        body = (await rig.post(PATH, asked(background=True))).json()
        assert (body["status"], body["background"], body["output"]) == ("queued", True, [])
        await (await engine.wait_seen()).event("decode").wait()
        grown = (await rig.client.get(f"{PATH}/{body['id']}")).json()
        assert (grown["status"], grown["usage"]) == ("in_progress", None)
        assert grown["output"][0]["content"][0]["text"] == "Hello, "
        error = error_of(await rig.post(PATH, asked(previous_response_id=body["id"])))
        assert "has not ended yet" in error["message"]
        engine.release()
        await until_ended(rig)
        ended = (await rig.client.get(f"{PATH}/{body['id']}")).json()
        assert (ended["status"], ended["output"][0]["status"]) == ("completed", "completed")
        assert ended["output"][0]["content"][0]["text"] == "Hello, wörld 🌍!"


async def test_a_background_response_outlives_its_connection() -> None:
    """The client that asked for it may go."""
    engine = FakeEngine(hold="decode")
    async with serving(engine) as rig:
        async with await rig.connect() as stream:
            await stream.send_all(raw_post(PATH, asked(background=True)))
            await read_until(stream, b"resp_")
        while rig.run.server.num_connections:
            await trio.testing.wait_all_tasks_blocked(0.001)
        assert engine.open
        engine.release()
        await until_ended(rig)
        assert rig.run.responses is not None
        assert rig.run.responses.num_stored == 1


async def test_a_background_response_that_fails() -> None:
    """Is stored with its error."""
    engine = FakeEngine()
    engine.break_after, engine.error = 1, RequestFailed("The request broke.")
    async with serving(engine) as rig:
        body = (await rig.post(PATH, asked(background=True))).json()
        await until_ended(rig)
        ended = (await rig.client.get(f"{PATH}/{body['id']}")).json()
        assert (ended["status"], ended["error"]["message"]) == ("failed", "The request broke.")


async def test_a_client_that_leaves_before_the_engine_has_it() -> None:
    """A background response whose client leaves while it is tokenized is given up."""
    engine = FakeEngine(hold="tokenizing")
    async with serving(engine) as rig:
        async with await rig.connect() as stream:
            await stream.send_all(raw_post(PATH, asked(background=True)))
            seen = await engine.wait_seen()
        await seen.left.wait()
        await rig.wait_closed()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_has_its_response_cancelled(stream: bool) -> None:
    """It leaves the engine, and is stored as far as it came."""
    engine = FakeEngine(hold="decode")
    async with serving(engine) as rig:
        async with await rig.connect() as socket:
            await socket.send_all(raw_post(PATH, asked(stream=stream)))
            seen = await engine.wait_seen()
            await seen.event("decode").wait()
        await seen.left.wait()
        await rig.wait_closed()
        body = (await rig.client.get(f"{PATH}/{seen.request_id}")).json()
        assert (body["status"], body["output"][0]["content"][0]["text"]) == ("cancelled", "Hello, ")
        assert body["output"][0]["status"] == "incomplete"


async def test_cancelling_what_has_ended() -> None:
    """A completed one is refused; there is none of another name."""
    async with serving() as rig:
        body = (await rig.post(PATH, asked())).json()
        response = await rig.post(f"{PATH}/{body['id']}/cancel", b"")
        assert response.status_code == 400
        assert error_of(response)["message"] == f"The response '{body['id']}' cannot be cancelled: it is completed."
        response = await rig.post(f"{PATH}/resp_none/cancel", b"")
        assert (response.status_code, error_of(response)["code"]) == (404, "not_found")


async def test_deleting() -> None:
    """One that has ended is gone; one that runs is ended, and never stored."""
    engine = FakeEngine()
    async with serving(engine) as rig:
        body = (await rig.post(PATH, asked())).json()
        response = await rig.client.delete(f"{PATH}/{body['id']}")
        assert response.json() == {"id": body["id"], "object": "response", "deleted": True}
        assert (await rig.client.delete(f"{PATH}/{body['id']}")).status_code == 404
        engine.hold = "decode"
        body = (await rig.post(PATH, asked(background=True))).json()
        await engine.seen[1].event("decode").wait()
        assert (await rig.client.delete(f"{PATH}/{body['id']}")).status_code == 200
        assert engine.seen[1].aborted
        engine.release()
        await until_ended(rig)
        assert (await rig.client.get(f"{PATH}/{body['id']}")).status_code == 404


async def test_no_key_reaches_another_ones_response() -> None:
    """Neither while it runs nor afterwards: reading, listing, cancelling, continuing and deleting it are all 404."""
    engine = FakeEngine(hold="decode")
    async with serving(engine, api_key=("one", "two")) as rig:
        response_id = (await rig.post(PATH, asked(background=True), headers=ONE)).json()["id"]

        async def nothing_for_the_other() -> None:
            for verb, path in (("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")):
                answer = await rig.client.request(verb, f"{PATH}/{response_id}{path}", headers=TWO)
                assert answer.status_code == 404, (verb, path)
            answer = await rig.post(PATH, asked(previous_response_id=response_id), headers=TWO)
            assert answer.status_code == 404

        await engine.seen[0].event("decode").wait()
        await nothing_for_the_other()
        assert not engine.seen[0].aborted
        engine.release()
        await until_ended(rig)
        await nothing_for_the_other()
        assert await status_of(rig, response_id, headers=ONE) == "completed"


async def test_the_metrics_tell_of_responses() -> None:
    """How many run, how many are stored, and what those take."""
    engine = FakeEngine(hold="decode")
    async with serving(engine) as rig:
        await rig.post(PATH, asked(background=True))
        labels = '{engine="0",model_name="fake"}'
        page = (await rig.client.get("/metrics")).text
        assert f"triolet:responses_running{labels} 1.0" in page
        assert f"triolet:responses_stored_bytes{labels} 0.0" in page
        engine.release()
        await until_ended(rig)
        page = (await rig.client.get("/metrics")).text
        assert f"triolet:responses_running{labels} 0.0" in page
        assert f"triolet:responses_stored{labels} 1.0" in page


async def test_input_items_come_in_pages() -> None:
    """Newest first unless asked otherwise, each with an id; what is asked wrongly is named."""
    said = [{"role": "user", "content": text} for text in ("a", "b", "c")]
    async with serving() as rig:
        body = (await rig.post(PATH, asked(input=said))).json()
        path = f"{PATH}/{body['id']}/input_items"
        page = (await rig.client.get(path, params={"limit": 2})).json()
        assert ([item["content"] for item in page["data"]], page["has_more"]) == (["c", "b"], True)
        rest = (await rig.client.get(path, params={"after": page["last_id"]})).json()
        assert ([item["content"] for item in rest["data"]], rest["has_more"]) == (["a"], False)
        every = (await rig.client.get(path, params={"order": "asc"})).json()
        assert [item["content"] for item in every["data"]] == ["a", "b", "c"]
        for name, value in (("limit", "0"), ("limit", "x"), ("order", "up"), ("after", "msg_none")):
            response = await rig.client.get(path, params={name: value})
            assert (response.status_code, error_of(response)["param"]) == (400, name)
        response = await rig.client.get(f"{PATH}/{body['id']}", params={"stream": "true"})
        assert (response.status_code, error_of(response)["param"]) == (400, "stream")


async def test_a_background_response_that_cannot_be_kept_is_refused() -> None:
    """What it repeats of its request fills the store by itself: nobody could ever read it."""
    async with serving(response_store_size=8192) as rig:
        for fields in ({"metadata": {"a": "b" * 8192}}, {"input": "b" * 8192}):
            response = await rig.post(PATH, {**asked(background=True), **fields})
            assert (response.status_code, error_of(response)["param"]) == (400, "background")
        assert not rig.engine.seen
        assert (await rig.post(PATH, asked(background=True))).status_code == 200
