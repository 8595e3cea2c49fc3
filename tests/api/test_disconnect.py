"""A client that goes takes its request with it: in every stage, streamed and plain, however it goes."""

import socket
import struct

import pytest
import trio

from .fake_engine import FakeEngine
from .rig import Rig, chat, raw_post, read_until, serving

STAGES = ["tokenizing", "queued", "prefill", "decode"]
ROUTES = [("/v1/chat/completions", chat()), ("/v1/completions", {"prompt": ["a", "b"]})]


async def leave(stream: trio.SocketStream, way: str) -> None:
    """Close (FIN), reset (RST), or close by half."""
    if way == "half":
        await stream.send_eof()
        return
    if way == "reset":
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await stream.aclose()


async def all_gone(rig: Rig) -> None:
    """No request is in the engine, none is registered, and no connection is left."""
    for seen in rig.engine.seen:
        await seen.left.wait()
    await rig.wait_closed()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_leaving_ends_the_request_in_every_stage(path: str, body: dict, streamed: bool, stage: str) -> None:
    """While tokenizing, queued, in prefill and in decode the engine has the request no more once the client is gone."""
    engine = FakeEngine(hold=stage)
    async with serving(engine) as rig:
        stream = await rig.connect()
        await stream.send_all(raw_post(path, {**body, "stream": streamed}))
        seen = await engine.wait_seen()
        await seen.event(stage).wait()
        await stream.aclose()
        await all_gone(rig)
        assert not seen.finished
        assert (await rig.client.get("/health")).status_code == 200


@pytest.mark.parametrize("way", ["close", "reset", "half"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_however_the_client_leaves(streamed: bool, way: str) -> None:
    """FIN, RST and half-close all count as leaving."""
    engine = FakeEngine(hold="decode")
    async with serving(engine) as rig:
        stream = await rig.connect()
        await stream.send_all(raw_post("/v1/chat/completions", chat(stream=streamed)))
        await (await engine.wait_seen()).event("decode").wait()
        await leave(stream, way)
        await all_gone(rig)
        await stream.aclose()


@pytest.mark.parametrize("extra", [b"\r\n", b"garbage", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 2])
@pytest.mark.parametrize("streamed", [False, True])
async def test_stray_and_pipelined_bytes_do_not_hide_the_leaving(streamed: bool, extra: bytes) -> None:
    """Bytes behind the request wait for its end, and the client's leaving is seen all the same."""
    engine = FakeEngine(hold="prefill")
    async with serving(engine) as rig:
        stream = await rig.connect()
        await stream.send_all(raw_post("/v1/chat/completions", chat(stream=streamed)) + extra)
        await (await engine.wait_seen()).event("prefill").wait()
        await stream.aclose()
        await all_gone(rig)


async def test_more_stray_bytes_than_are_read_ahead_hide_nothing_from_a_stream() -> None:
    """Where the connection is not read any further, the write of a comment fails."""
    engine = FakeEngine(hold="prefill")
    async with serving(engine, ping_interval=0.01) as rig:
        stream = await rig.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, raw_post("/v1/chat/completions", chat(stream=True)) + bytes(50_000_000))
            await (await engine.wait_seen()).event("prefill").wait()
            await read_until(stream, b": ping")
            nursery.cancel_scope.cancel()
        await leave(stream, "reset")
        await all_gone(rig)


async def test_leaving_while_sending_the_body() -> None:
    """Half a body, then gone: no request was ever made of it."""
    async with serving() as rig:
        stream = await rig.connect()
        await stream.send_all(raw_post("/v1/chat/completions", chat())[:-5])
        await trio.testing.wait_all_tasks_blocked()
        await stream.aclose()
        await rig.wait_closed()
        assert not rig.engine.seen


async def test_leaving_touches_nobody_else() -> None:
    """Of two streams one breaks off; the other gets its whole answer."""
    engine = FakeEngine(hold="decode")
    async with serving(engine) as rig:
        gone, stays = await rig.connect(), await rig.connect()
        for stream in (gone, stays):
            await stream.send_all(raw_post("/v1/chat/completions", chat(stream=True)))
        await engine.wait_seen(2)
        for seen in engine.seen:
            await seen.event("decode").wait()
        first = next(iter(engine.open))
        await gone.aclose()
        await engine.seen[0].left.wait()
        assert first not in engine.open
        engine.release()
        assert "wörld".encode() in await read_until(stays, b"[DONE]")
        await stays.aclose()


async def test_a_hundred_broken_streams_leave_nothing() -> None:
    """Requests, connections and tasks are where they began."""
    engine = FakeEngine(hold="decode")
    async with serving(engine) as rig:
        await trio.testing.wait_all_tasks_blocked(0.001)
        before = trio.lowlevel.current_statistics().tasks_living
        streams = [await rig.connect() for _ in range(100)]
        for stream in streams:
            await stream.send_all(raw_post("/v1/chat/completions", chat(stream=True)))
        await engine.wait_seen(100)
        for stream in streams:
            await stream.aclose()
        await all_gone(rig)
        while trio.lowlevel.current_statistics().tasks_living > before:  # the last of them are on their way out
            await trio.testing.wait_all_tasks_blocked(0.001)
