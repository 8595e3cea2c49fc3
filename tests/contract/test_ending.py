"""Requests that are ended while their client stays: by name, by a deadline, by the queue's limit, by a newer one."""

import json
from typing import Any

import pytest
import trio
import trio.testing

from .clients import PROTOCOLS, connect
from .stage import Stage, staged, until
from .states import CHAT, LONG, STATES, State, body, choices_of, events

BY_NAME = {state.name: state for state in STATES}
EARLY = [BY_NAME[name] for name in ("tokenizing", "queued", "in prefill", "in decode")]
both_protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
streamed_or_not = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
in_every_state = pytest.mark.parametrize("state", EARLY, ids=lambda state: state.name)


def texts_so_far(state: State) -> set[str]:
    """What a request of that state may have said when it ends: nothing of the step in flight is shown."""
    return {"aa", "aaa"} if state.name == "in decode" else {""}


async def finish_others(stage: Stage) -> None:
    """Who stays gets its whole answer."""
    stage.device.step(1000)
    for other in stage.others:
        assert [told.text for told in choices_of(await other.read(), streamed=True)] == ["hello"] * 4
        await other.close()


@both_protocols
@streamed_or_not
@in_every_state
@pytest.mark.parametrize("n", [1, 3])
async def test_a_request_is_cancelled_by_its_name(protocol: str, streamed: bool, state: State, n: int) -> None:
    """Its client gets the text so far, `abort` and [DONE]; the engine has it no more at the next step boundary."""
    async with staged() as stage:
        client, other = await connect(protocol, stage.port), await connect(protocol, stage.port)
        await state.reach(stage, client, body(stream=streamed, n=n, request_id="mine"))
        answer = await other.answer("/v1/requests/mine/cancel", {})
        assert (other.status, answer) == (200, {"id": "mine", "object": "request.cancellation", "cancelled": 1})
        if stage.device.waits:
            await stage.step()
        told = choices_of(await client.read(), streamed=streamed)
        assert (client.status, client.headers["x-request-id"]) == (200, "mine")
        assert len(told) == n
        for choice in told:
            assert choice.text in texts_so_far(state)
            assert (choice.finish_reason, choice.stop_reason) == ("abort", "cancelled")
        await other.answer("/v1/requests/mine/cancel", {})
        assert other.status == 404
        await finish_others(stage)
        await client.close()
        await other.close()
        await stage.wait_all_gone()


@both_protocols
async def test_a_name_that_nobody_has_is_not_found(protocol: str) -> None:
    """404 in the usual shape; the name is the header's or the body's, and without either the answer tells one."""
    async with staged(step_freely=True) as stage:
        client = await connect(protocol, stage.port)
        answer = await client.answer("/v1/requests/nobody/cancel", {})
        assert (client.status, answer["error"]["code"]) == (404, "not_found")
        assert answer["error"]["message"] == "There is no open request 'nobody'."
        await client.answer(CHAT, body("hi"))
        assert len(client.headers["x-request-id"]) == 32
        await client.answer(CHAT, body("hi", request_id="body"), x_request_id="header")
        assert client.headers["x-request-id"] == "header"
        await client.close()


@both_protocols
async def test_only_the_same_key_cancels(protocol: str) -> None:
    """Another API key finds no such request, and no key no route; an admin key, where there are any, ends anybody's."""
    async with staged(api_key=("a", "b"), admin_api_key=("admin",)) as stage:
        for allowed in ("a", "admin"):
            client = await connect(protocol, stage.port)
            await client.ask(CHAT, body(stream=True), x_request_id="mine", authorization="Bearer a")
            await until(lambda: stage.device.waits)
            for key, status in (("none", 401), ("b", 404), (allowed, 200)):
                other = await connect(protocol, stage.port)
                await other.answer("/v1/requests/mine/cancel", {}, authorization=f"Bearer {key}")
                assert other.status == status
                await other.close()
            await stage.step()
            assert choices_of(await client.read(), streamed=True)[0].finish_reason == "abort"
            await client.close()


@both_protocols
@streamed_or_not
@in_every_state
@pytest.mark.parametrize("where", ["body", "header", "flag"])
async def test_a_deadline_gives_what_there_is(
    protocol: str, streamed: bool, state: State, where: str, mock_clock: trio.testing.MockClock
) -> None:
    """At its deadline a request ends with its text so far, `timeout` and `timed_out`: never a silent cut."""
    config = {"default_timeout": 5.0} if where == "flag" else {}
    async with staged(**config) as stage:
        client = await connect(protocol, stage.port)
        fields: dict[str, Any] = {"timeout": 5} if where == "body" else {}
        headers = {"x_request_timeout": "5"} if where == "header" else {}
        client.more_headers = headers
        await state.reach(stage, client, body(stream=streamed, **fields))
        mock_clock.jump(4.9)
        await until(lambda: True)
        assert not client.ended
        mock_clock.jump(0.2)
        if stage.device.waits:
            await stage.step()
        (told,) = choices_of(await client.read(), streamed=streamed)
        assert told.text in texts_so_far(state)
        assert (told.finish_reason, told.timed_out) == ("timeout", True)
        if where != "flag":
            await finish_others(stage)
        await client.close()
        for other in stage.others:
            await other.close()
        await stage.wait_all_gone()


@both_protocols
@streamed_or_not
@pytest.mark.parametrize("where", ["body", "flag"])
async def test_time_in_the_queue_is_limited(
    protocol: str, streamed: bool, where: str, mock_clock: trio.testing.MockClock
) -> None:
    """Not admitted in time: 503 with Retry-After, as a status, also for a stream; nothing was computed."""
    config = {"max_queue_time": 5.0} if where == "flag" else {}
    async with staged(**config) as stage:
        client = await connect(protocol, stage.port)
        fields: dict[str, Any] = {"max_queue_time": 5} if where == "body" else {}
        await BY_NAME["queued"].reach(stage, client, body(stream=streamed, **fields))
        mock_clock.jump(5.1)
        await stage.step()
        answer = await client.read()
        assert client.status == 503
        assert int(client.headers["retry-after"]) >= 1
        assert b'"code":"overloaded"' in answer
        await finish_others(stage)
        assert len(stage.device.plans[-1].joined) == 0
        await client.close()
        await stage.wait_all_gone()


@both_protocols
async def test_who_is_admitted_in_time_stays(protocol: str, mock_clock: trio.testing.MockClock) -> None:
    """The limit of the queue is none for the work, and the stream begins with the admission."""
    async with staged() as stage:
        client = await connect(protocol, stage.port)
        await client.ask(CHAT, body("hello", stream=True, max_queue_time=5))
        await until(lambda: stage.device.waits)
        mock_clock.jump(60)
        stage.device.step(1000)
        assert choices_of(await client.read(), streamed=True)[0].text == "hello"
        await client.close()


@both_protocols
@streamed_or_not
@in_every_state
async def test_a_newer_request_takes_the_place_of_the_older(protocol: str, streamed: bool, state: State) -> None:
    """The older one ends with `abort` and `superseded`; the newer finds their common prefix in the cache."""
    async with staged() as stage:
        older, newer = await connect(protocol, stage.port), await connect(protocol, stage.port)
        older.more_headers = newer.more_headers = {"x_supersede_key": "editor 1"}
        await state.reach(stage, older, body(stream=streamed))
        stage.tokenizer.held = False
        await newer.ask(CHAT, body(LONG + "b", stream_options={"include_usage": True}, stream=True))
        await until(lambda: stage.tokenizer.num_encoded == 2 + state.num_others)
        stage.device.step(1000)
        (told,) = choices_of(await older.read(), streamed=streamed)
        assert told.text in texts_so_far(state)
        assert (told.finish_reason, told.stop_reason) == ("abort", "superseded")
        text = await newer.read()
        assert choices_of(text, streamed=True)[0].text == (LONG + "b")[:40]
        if state.name == "in decode":
            assert events(text)[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32
        await finish_others(stage)
        for client in (older, newer):
            await client.close()
        await stage.wait_all_gone()


@both_protocols
async def test_keys_of_others_supersede_nothing(protocol: str) -> None:
    """Neither another supersede key nor the same one under another API key."""
    async with staged(api_key=("a", "b")) as stage:
        clients = []
        for key, name in (("a", "x"), ("a", "y"), ("b", "x")):
            client = await connect(protocol, stage.port)
            await client.ask(CHAT, body("hello"), authorization=f"Bearer {key}", x_supersede_key=name)
            clients.append(client)
        await until(lambda: stage.num_open == 3)
        stage.device.step(1000)
        for client in clients:
            assert choices_of(await client.read(), streamed=False)[0].text == "hello"
            await client.close()


@both_protocols
async def test_a_superseded_request_of_several_prompts_ends_wholly(protocol: str) -> None:
    """Its prompts do not replace each other, and all of them go together."""
    async with staged() as stage:
        older, newer = await connect(protocol, stage.port), await connect(protocol, stage.port)
        prompts = {"prompt": ["aaaa\n", "bbbb\n", "cccc\n"]}
        await older.ask("/v1/completions", prompts, x_supersede_key="k")
        await until(lambda: stage.engine.stats().running + stage.engine.stats().waiting == 3)
        await newer.ask("/v1/completions", {"prompt": "dddd\n"}, x_supersede_key="k")
        await until(lambda: stage.num_open == 2)
        stage.device.step(1000)
        answer = await older.read()
        assert answer.count(b'"finish_reason":"abort","stop_reason":"superseded"') == 3
        assert b'"text":"dddd"' in await newer.read()
        for client in (older, newer):
            await client.close()
        await stage.wait_all_gone()


@both_protocols
@pytest.mark.parametrize("state", ["queued", "in prefill"])
async def test_a_quiet_stream_pings(protocol: str, state: str, mock_clock: trio.testing.MockClock) -> None:
    """While it is queued and in prefill: so proxies don't cut it, and a hidden disconnect shows."""
    async with staged(ping_interval=5.0) as stage:
        client = await connect(protocol, stage.port)
        await BY_NAME[state].reach(stage, client, body(stream=True))
        for count in (1, 2):
            mock_clock.jump(5.1)
            while client.body.count(b": ping\n\n") < count:
                await client._read()
        stage.device.step(1000)
        assert choices_of(await client.read(), streamed=True)[0].text == LONG
        await finish_others(stage)
        await client.close()


@both_protocols
@streamed_or_not
async def test_several_answers_and_their_usage(protocol: str, streamed: bool) -> None:
    """Choices are numbered over prompts and answers; a prompt's tokens count once, the answers' all."""
    async with staged(max_num_seqs=8, step_freely=True) as stage:
        client = await connect(protocol, stage.port)
        fields = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
        await client.ask("/v1/completions", {"prompt": ["abc\n", "defg\n"], "n": 3, **fields})
        answer = await client.read()
        whole = events(answer) if streamed else [json.loads(answer)]
        texts = dict.fromkeys(range(6), "")
        for event in whole:
            for choice in event["choices"]:
                texts[choice["index"]] += choice["text"]
        assert list(texts.values()) == ["abc"] * 3 + ["defg"] * 3
        usage = whole[-1]["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (4 + 5, 3 * 4 + 3 * 5)
        await client.close()


@both_protocols
async def test_beams_are_answered_whole(protocol: str) -> None:
    """The n most likely answers, best first, and nothing left of the search."""
    async with staged(step_freely=True) as stage:
        client = await connect(protocol, stage.port)
        answer = await client.answer(CHAT, body("hi", n=3, use_beam_search=True, max_tokens=4, length_penalty=0.5))
        assert len({choice["message"]["content"] for choice in answer["choices"]}) == 3
        assert answer["usage"]["completion_tokens"] <= 12
        await client.close()
        await stage.wait_all_gone()
