"""The life of a server: starting, being told to stop, and an engine that dies."""

import gc
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import trio

from triolet.api.config import ServerConfig
from triolet.api.serve import serve
from triolet.engine.config import EngineConfig
from triolet.engine.core.errors import ConfigurationError, ModelLoadError

from .fake_engine import FakeEngine, opening
from .rig import chat, error_of, events_of, raw_post, read_to_end, serving

CHAT = "/v1/chat/completions"


async def test_port_0_prints_the_port_it_got(capsys: pytest.CaptureFixture[str]) -> None:
    """One line on stdout, with the address that works."""
    async with serving() as rig:
        assert capsys.readouterr().out == f"Triolet is ready: {rig.url}/v1\n"


async def test_a_port_in_use_names_the_flags() -> None:
    """It shows before a model is loaded."""
    async with serving() as rig:
        port = rig.run.server.port

        def never(*_: Any, **__: Any) -> Any:
            raise AssertionError("the engine was opened")

        with pytest.raises(ConfigurationError) as caught:
            await serve(EngineConfig(), ServerConfig(port=port), open_engine=never, version="1")
    assert caught.value.message == f"Cannot listen on --host 127.0.0.1 --port {port}: Address already in use."


async def test_an_address_that_is_not_ours_names_the_flags() -> None:
    """A host that does not resolve, or belongs to somebody else."""
    for host in ("no-such-host.invalid", "192.0.2.1"):
        with pytest.raises(ConfigurationError, match=f"--host {host}"):
            await serve(EngineConfig(), ServerConfig(host=host), open_engine=opening(FakeEngine()), version="1")


async def test_a_model_that_cannot_be_loaded_is_the_callers_error() -> None:
    """StartError passes as it is, and the port is free again."""

    @asynccontextmanager
    async def failing(*_: Any, **__: Any) -> AsyncIterator[Any]:
        raise ModelLoadError("x.gguf is damaged")
        yield

    with pytest.raises(ModelLoadError, match=r"x\.gguf is damaged"):
        await serve(EngineConfig(), ServerConfig(port=0), open_engine=failing, version="1")


async def test_what_a_server_has_frozen_can_be_collected_when_it_has_ended() -> None:
    """The process may go on: nothing is kept from the garbage collector then."""
    async with serving():
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


async def test_stopping_gives_every_open_request_its_last_word() -> None:
    """A stream gets an error event and [DONE], a plain request a 503; the status is 0."""
    engine = FakeEngine(hold="decode")
    async with serving(engine) as rig:
        stream, plain = await rig.connect(), await rig.connect()
        await stream.send_all(raw_post(CHAT, chat(stream=True)))
        await plain.send_all(raw_post(CHAT, chat()))
        await engine.wait_seen(2)
        for seen in engine.seen:
            await seen.event("decode").wait()
        rig.run.stop.set()
        streamed, answered = await read_to_end(stream), await read_to_end(plain)
        await rig.ended.wait()
        assert rig.status == 0
        assert not engine.open
        await stream.aclose()
        await plain.aclose()
    assert b'"code":"shutting_down"' in streamed
    assert streamed.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert answered.startswith(b"HTTP/1.1 503")
    assert b"The server is shutting down." in answered


async def test_draining_lets_running_requests_finish_and_takes_no_more() -> None:
    """Until they have: /health and new requests get 503 with Retry-After."""
    engine = FakeEngine(hold="decode")
    async with serving(engine, shutdown_timeout=10_000.0) as rig, trio.open_nursery() as nursery:
        answers = []

        async def ask() -> None:
            answers.append(await rig.post(CHAT, chat(stream=True)))

        nursery.start_soon(ask)
        await (await engine.wait_seen()).event("decode").wait()
        rig.run.lifecycle.drain()
        for method, path, body in (("GET", "/health", None), ("POST", CHAT, chat())):
            response = await rig.client.request(method, path, json=body)
            assert response.status_code == 503
            assert response.headers["retry-after"] == "5"
            assert error_of(response)["code"] == "shutting_down"
        rig.run.stop.set()
        engine.release()
        await rig.ended.wait()
    assert rig.status == 0
    assert events_of(answers[0].text)[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_the_server_and_a_second_one_at_once(number: signal.Signals) -> None:
    """The first lets requests finish, the second does not wait for them; the status is 0 either way."""
    engine = FakeEngine(hold="decode")
    statuses = []
    async with trio.open_nursery() as nursery:

        async def run(*, task_status: Any) -> None:
            config = ServerConfig(port=0, shutdown_timeout=10_000.0)
            statuses.append(
                await serve(EngineConfig(), config, open_engine=opening(engine), version="1", task_status=task_status)
            )

        started = await nursery.start(run)
        async with await trio.open_tcp_stream("127.0.0.1", started.server.port) as stream:
            await stream.send_all(raw_post(CHAT, chat(stream=True)))
            await (await engine.wait_seen()).event("decode").wait()
            os.kill(os.getpid(), number)
            await started.stop.wait()
            assert engine.open
            os.kill(os.getpid(), number)
            await read_to_end(stream)
    assert statuses == [0]
    assert not engine.open


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_while_the_model_loads_stops_the_start(number: signal.Signals) -> None:
    """The status is the shell's for that signal, and the loading bars are put away."""
    shown: list[str] = []

    @asynccontextmanager
    async def loading_for_ever(*_: Any, progress: Any, **__: Any) -> AsyncIterator[Any]:
        progress("weights", 1, 2)
        os.kill(os.getpid(), number)
        await trio.sleep_forever()
        yield

    @contextmanager
    def bars() -> Iterator[Any]:
        yield lambda what, done, total: shown.append(f"{what} {done}/{total}")
        shown.append("closed")

    status = await serve(EngineConfig(), ServerConfig(port=0), open_engine=loading_for_ever, version="1", loading=bars)
    assert status == 128 + number
    assert shown == ["weights 1/2", "closed"]


async def test_a_dead_engine_ends_every_request_with_an_error_and_the_server_with_1() -> None:
    """Streams get one error event, plain requests a 503; then everything closes."""
    engine = FakeEngine(hold="decode")
    async with serving(engine) as rig:
        stream, plain = await rig.connect(), await rig.connect()
        await stream.send_all(raw_post(CHAT, chat(stream=True)))
        await plain.send_all(raw_post(CHAT, chat()))
        await engine.wait_seen(2)
        for seen in engine.seen:
            await seen.event("decode").wait()
        engine.die("The device thread has died.")
        streamed, answered = await read_to_end(stream), await read_to_end(plain)
        await rig.ended.wait()
        assert rig.status == 1
        await stream.aclose()
        await plain.aclose()
    assert streamed.count(b'"error"') == 1
    assert b"The device thread has died." in streamed
    assert b"data: [DONE]" in streamed
    assert answered.startswith(b"HTTP/1.1 503")
    assert b"engine_dead" in answered


async def test_an_idle_server_with_a_dead_engine_ends_with_1() -> None:
    """Nobody has to ask."""
    engine = FakeEngine()
    async with serving(engine) as rig:
        engine.die("gone")
        await rig.ended.wait()
        assert rig.status == 1
