"""The control routes: stories of requests, and settings; for admins alone where there are any."""

import argparse
import shlex
from pathlib import Path
from typing import Any

import pytest

from triolet.engine.core.events import FinishReason, PreemptReason
from triolet.engine.story import Story

from .fake_engine import FakeEngine
from .rig import error_of, serving

PAGE = Path(__file__).parents[2] / "docs" / "observing.md"


def told_engine() -> FakeEngine:
    """One request that has ended, after a preemption, and one that waits."""
    story = Story(name="mine", arrival_time=100.0, created=1_700_000_000.9)
    story.tokenized(100.5, num_tokens=70, max_tokens=8)
    story.admitted_time, story.num_cached_tokens = 101.0, 16
    story.chunk(101.0, 50)
    story.chunk(102.0, 4)
    story.preempted(103.0, PreemptReason.BLOCKS)
    story.chunk(104.0, 70)
    story.first_token_time, story.last_token_time = 105.0, 106.0
    story.num_output_tokens, story.num_deltas = 2, 2
    story.ended(106.0, FinishReason.STOP, None)
    waiting = Story(name="other", arrival_time=107.0, num_prompt_tokens=5, tokenized_time=107.0)
    engine = FakeEngine()
    engine.told = [waiting, story]
    return engine


async def test_a_request_s_story_has_its_events_in_order() -> None:
    """Queued, tokenized, admitted, chunks, a preemption with its reason, first and last token, end."""
    async with serving(told_engine()) as rig:
        response = await rig.client.get("/v1/requests/mine")
    told = response.json()
    assert response.status_code == 200
    assert [(event["event"], event["at"]) for event in told["events"]] == [
        ("queued", 0.0),
        ("tokenized", 0.5),
        ("admitted", 1.0),
        ("chunk", 1.0),
        ("chunk", 2.0),
        ("preempted", 3.0),
        ("chunk", 4.0),
        ("first_token", 5.0),
        ("last_token", 6.0),
        ("end", 6.0),
    ]
    assert told["events"][5]["reason"] == "blocks"
    assert told["events"][-1]["finish_reason"] == "stop"
    expected: dict[str, Any] = {
        "id": "mine",
        "state": "ended",
        "created": 1_700_000_000,
        "prompt_tokens": 70,
        "cached_tokens": 16,
        "output_tokens": 2,
        "deltas": 2,
        "chunks": 3,
        "preemptions": 1,
        "time_to_first_token_seconds": 5.0,
        "e2e_seconds": 6.0,
    }
    assert expected.items() <= told.items()


async def test_requests_are_listed_by_state() -> None:
    """All, or those in one; a state that there is not is refused, and so is a request that nobody remembers."""
    async with serving(told_engine()) as rig:
        for query, names in (("", ["other", "mine"]), ("?state=waiting", ["other"]), ("?state=decode", [])):
            body = (await rig.client.get(f"/v1/requests{query}")).json()
            assert [request["id"] for request in body["data"]] == names
        response = await rig.client.get("/v1/requests?state=lost")
        assert response.status_code == 400
        assert error_of(response)["message"].startswith("state must be one of tokenizing, waiting, prefill")
        response = await rig.client.get("/v1/requests/nobody")
        assert (response.status_code, error_of(response)["message"]) == (
            404,
            "There is no request 'nobody', or none that is remembered.",
        )


async def test_settings_are_shown_and_changed() -> None:
    """PATCH takes what is to change, and nothing it does not know; pause, resume and reset have routes of their own."""
    async with serving() as rig:
        body = (await rig.client.get("/admin/settings")).json()
        assert (body["object"], body["max_num_batched_tokens"], body["paused"]) == ("settings", 2048, False)
        response = await rig.client.patch("/admin/settings", json={"max_num_batched_tokens": 64})
        assert response.json()["max_num_batched_tokens"] == 64
        change = {"max_num_seqs": 32, "scheduling_policy": "fair"}
        body = (await rig.client.patch("/admin/settings", json=change)).json()
        assert change.items() <= body.items()
        response = await rig.client.patch("/admin/settings", json={"block_size": 64})
        assert response.status_code == 400
        assert (await rig.client.post("/admin/pause")).json()["paused"] is True
        assert (await rig.client.post("/admin/resume")).json()["paused"] is False
        assert (await rig.client.post("/admin/reset_prefix_cache")).json()["reset"] is True
        rig.engine.controls.busy = True
        response = await rig.client.post("/admin/reset_prefix_cache")
        assert (response.status_code, error_of(response)["code"]) == (409, "conflict")


async def test_what_the_page_says_to_type_works() -> None:
    """The curl lines of docs/observing.md, sent as curl would: a body without a Content-Type is called a form."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("curl ")]
    assert len(lines) == 4
    parser = argparse.ArgumentParser()
    for flag, default in (("-X", "GET"), ("-H", "content-type: application/x-www-form-urlencoded"), ("-d", "")):
        parser.add_argument(flag, default=default)
    parser.add_argument("url")
    async with serving() as rig:
        for line in lines:
            typed = parser.parse_args(shlex.split(line, comments=True)[1:])
            name, _, value = typed.H.partition(": ")
            headers = {name: value} if typed.d else {}
            path = typed.url.removeprefix("localhost:8000")
            response = await rig.client.request(typed.X, path, content=typed.d, headers=headers)
            assert response.status_code == 200, line


@pytest.mark.parametrize("path", ["/v1/requests", "/v1/requests/mine", "/admin/settings"])
async def test_an_admin_s_key_opens_them_and_no_other(path: str) -> None:
    """With an admin key set."""
    async with serving(told_engine(), api_key=("a-key",), admin_api_key=("an-admin-key",)) as rig:
        for key, status in (("a-key", 403), ("an-admin-key", 200)):
            response = await rig.client.get(path, headers={"authorization": f"Bearer {key}"})
            assert response.status_code == status
