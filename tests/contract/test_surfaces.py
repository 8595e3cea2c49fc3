"""The other chat surfaces keep the same contract: who leaves gives everything back, and who is ended hears of it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import trio.testing

from .clients import PROTOCOLS, Client, connect
from .stage import Stage, staged, until
from .states import STATES, State, body
from .surfaces import SURFACES, As, Surface, last_event
from .test_ending import EARLY, finish_others, texts_so_far
from .test_stopping import told_to_stop

RESPONSES = SURFACES["responses"]
both_protocols = pytest.mark.parametrize("protocol", PROTOCOLS)


def cases() -> Iterator[Any]:
    """Every surface, protocol and state, streamed and plain, left by closing and by resetting."""
    for name, surface in SURFACES.items():
        for protocol, client in PROTOCOLS.items():
            for way in (client.WAYS[0], client.WAYS[-2]):
                for state in STATES:
                    for streamed in state.streamed if state.name != "compiling" else ():
                        how = "streamed" if streamed else "plain"
                        yield pytest.param(
                            surface, protocol, way, state, streamed, id=f"{name} {protocol} {way} {state.name} {how}"
                        )


@pytest.mark.parametrize(("surface", "protocol", "way", "state", "streamed"), list(cases()))
async def test_leaving_gives_everything_back(
    surface: Surface, protocol: str, way: str, state: State, streamed: bool
) -> None:
    """Out of the scheduler at the next step boundary, at most the step in flight wasted, tasks and descriptors gone."""
    async with staged() as stage:
        stage.tokenizer.loud = state.loud
        client = await connect(protocol, stage.port, stalled=state.stalled, window=state.window)
        await state.reach(stage, As(client, surface), body(stream=streamed))  # type: ignore[arg-type]
        num_plans = stage.num_plans
        await client.leave(way)
        await until(lambda: stage.num_open == state.num_others)
        if stage.device.waits:
            await stage.step()
        assert stage.num_plans == num_plans + state.num_others, "no later plan has it"
        assert stage.wasted_tokens <= (1 if state.tokens_in_flight else 0)
        for other in stage.others:
            stage.device.step(1000)
            await other.read()
            await other.close()
        await client.close()
        await stage.wait_all_gone()


def id_of(text: bytes) -> str:
    """Of the first event of a response's stream."""
    data = text.split(b"\n")[1].removeprefix(b"data: ")
    return str(json.loads(data)["response"]["id"])


@both_protocols
@pytest.mark.parametrize("state", EARLY[1:], ids=lambda state: state.name)
async def test_a_streamed_response_is_cancelled_by_its_id(protocol: str, state: State) -> None:
    """In any stage since its first event: its client gets the text so far, and so does who cancelled it."""
    async with staged() as stage:
        client, other = await connect(protocol, stage.port), await connect(protocol, stage.port)
        await state.reach(stage, As(client, RESPONSES), body(stream=True))  # type: ignore[arg-type]
        response_id = id_of(await client.read_until(b"event: response.in_progress"))
        await other.ask(f"{RESPONSES.path}/{response_id}/cancel", {})
        await until(lambda: any(request.ended_by for request in stage.run.lifecycle.open_requests))
        if stage.device.waits:
            await stage.step()
        event = last_event(await client.read())
        assert event["type"] == "response.incomplete"
        assert json.loads(await other.read()) == event["response"]
        assert event["response"]["status"] == "cancelled"
        (message,) = event["response"]["output"] or [None]
        assert (message["content"][0]["text"] if message else "") in texts_so_far(state)
        await finish_others(stage)
        await client.close()
        await other.close()
        await stage.wait_all_gone()


async def begun_behind(stage: Stage, protocol: str, text: str = "a" * 40) -> tuple[Client, str]:
    """A background response of which some tokens are there; its client has gone, and another one asks."""
    client = await connect(protocol, stage.port)
    answer = await client.answer(RESPONSES.path, {"input": text, "max_output_tokens": 40, "background": True})
    assert answer["status"] == "queued"
    await client.close()
    await until(lambda: stage.device.waits)
    await stage.step(5)
    assert stage.num_open == 1
    return await connect(protocol, stage.port), answer["id"]


@both_protocols
async def test_a_background_response_is_cancelled_by_its_id(protocol: str) -> None:
    """At the next step boundary; its text so far stays to be read, and nothing else is left of it."""
    async with staged() as stage:
        client, response_id = await begun_behind(stage, protocol)
        await client.ask(f"{RESPONSES.path}/{response_id}/cancel", {})
        await until(lambda: any(request.ended_by for request in stage.run.lifecycle.open_requests))
        await stage.step()
        answer = json.loads(await client.read())
        assert answer["status"] == "cancelled"
        assert answer["output"][0]["content"][0]["text"] in ("aaa", "aaaa")
        assert await client.answer(f"{RESPONSES.path}/{response_id}") == answer
        await client.close()
        await stage.wait_all_gone()


async def test_a_background_response_keeps_its_deadline(mock_clock: trio.testing.MockClock) -> None:
    """`timeout` counts from its request, whether anybody is there or not."""
    async with staged() as stage:
        client = await connect("http/1.1", stage.port)
        answer = await client.answer(RESPONSES.path, {"input": "a" * 40, "background": True, "timeout": 9})
        await client.close()
        await until(lambda: stage.device.waits)
        mock_clock.jump(10)
        await stage.step()
        client = await connect("http/1.1", stage.port)
        ended = await client.answer(f"{RESPONSES.path}/{answer['id']}")
        assert (ended["status"], ended["incomplete_details"]) == ("incomplete", {"reason": "timeout"})
        await client.close()
        await stage.wait_all_gone()


async def test_a_drain_waits_for_background_responses() -> None:
    """As for requests whose clients are there; they can be read until the end."""
    async with staged(signals=True, shutdown_timeout=1000.0) as stage:
        client, response_id = await begun_behind(stage, "http/1.1", "a" * 30)
        await told_to_stop(stage)
        refused = await client.answer(RESPONSES.path, {"input": "hello", "background": True})
        assert (client.status, refused["error"]["code"]) == (503, "shutting_down")
        stage.device.step(1000)
        await stage.ended.wait()
        assert stage.status == [0]
        assert stage.run.responses is not None
        assert b"a" * 30 in stage.run.responses.body("", response_id)
        await client.close()


async def test_a_drain_ends_background_responses_at_last(mock_clock: trio.testing.MockClock) -> None:
    """After --shutdown-timeout they fail, and hold nothing up."""
    async with staged(signals=True, shutdown_timeout=30.0) as stage:
        client, response_id = await begun_behind(stage, "http/1.1")
        await told_to_stop(stage)
        await until(lambda: True)
        mock_clock.jump(31)
        await stage.ended.wait()
        assert stage.status == [0]
        assert stage.run.responses is not None
        told = json.loads(stage.run.responses.body("", response_id))
        assert (told["status"], told["error"]["code"]) == ("failed", "shutting_down")
        await client.close()


async def test_an_engine_that_dies_fails_background_responses() -> None:
    """As it fails those whose clients are there."""
    async with staged(fail_at=7) as stage:
        client, response_id = await begun_behind(stage, "http/1.1")
        stage.device.step(1000)
        await stage.ended.wait()
        assert stage.status == [1]
        assert stage.run.responses is not None
        told = json.loads(stage.run.responses.body("", response_id))
        assert (told["status"], told["error"]["code"]) == ("failed", "engine_dead")
        await client.close()


async def test_background_responses_are_bounded_by_the_queue() -> None:
    """Past --max-num-queued-reqs one is refused like any other request."""
    async with staged(max_num_seqs=1, max_num_queued_reqs=2) as stage:
        client = await connect("http/1.1", stage.port)
        for _ in range(3):
            answer = await client.answer(RESPONSES.path, {"input": "a" * 40, "background": True})
            assert client.status == 200
            await until(lambda: stage.device.waits)
        answer = await client.answer(RESPONSES.path, {"input": "a" * 40, "background": True})
        assert (client.status, answer["error"]["code"]) == (503, "overloaded")
        stage.device.step(1000)
        await client.close()
        await stage.wait_all_gone()
