"""Stopping the server, and an engine that dies: nobody is left without a last word."""

import os
import signal
from typing import Any

import pytest
import trio
import trio.testing

from .clients import PROTOCOLS, Client, connect
from .stage import Stage, staged, until
from .states import CHAT, body, choices_of

both_protocols = pytest.mark.parametrize("protocol", PROTOCOLS)


async def two_in_decode(stage: Stage, protocol: str) -> list[Client]:
    """One streamed and one plain request, each with some tokens."""
    clients = [await connect(protocol, stage.port) for _ in range(2)]
    for client, streamed in zip(clients, (True, False), strict=True):
        await client.ask(CHAT, body("a" * 30, stream=streamed))
    await until(lambda: stage.num_open == 2 and stage.device.waits)
    await stage.step(8)
    return clients


async def told_to_stop(stage: Stage) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    await stage.run.stop.wait()


@both_protocols
async def test_a_drain_lets_running_requests_finish(protocol: str) -> None:
    """After SIGTERM /health and new requests get 503 with Retry-After; what runs has its whole answer; status 0."""
    async with staged(signals=True, shutdown_timeout=1000.0) as stage:
        clients = await two_in_decode(stage, protocol)
        await told_to_stop(stage)
        other = await connect(protocol, stage.port)
        fields: Any
        for path, fields in (("/health", None), (CHAT, body("hello"))):
            answer = await other.answer(path, fields)
            assert (other.status, answer["error"]["code"]) == (503, "shutting_down")
            assert other.headers["retry-after"] == "5"
        stage.device.step(1000)
        for client, streamed in zip(clients, (True, False), strict=True):
            (told,) = choices_of(await client.read(), streamed=streamed)
            assert (told.text, told.finish_reason) == ("a" * 30, "stop")
        await stage.ended.wait()
        assert stage.status == [0]
        for client in (*clients, other):
            await client.close()


@both_protocols
async def test_a_drain_has_an_end(protocol: str, mock_clock: trio.testing.MockClock) -> None:
    """After --shutdown-timeout the rest get a terminal event: an error and [DONE], or a 503; status 0."""
    async with staged(signals=True, shutdown_timeout=30.0) as stage:
        clients = await two_in_decode(stage, protocol)
        await told_to_stop(stage)
        await until(lambda: True)
        mock_clock.jump(29)
        await until(lambda: stage.num_open == 2)
        mock_clock.jump(2)
        streamed, plain = [await client.read() for client in clients]
        assert b'"code":"shutting_down"' in streamed
        assert streamed.endswith(b"data: [DONE]\n\n")
        assert (clients[1].status, b'"code":"shutting_down"' in plain) == (503, True)
        await stage.ended.wait()
        assert stage.status == [0]
        for client in clients:
            await client.close()


@both_protocols
async def test_a_second_signal_ends_at_once(protocol: str) -> None:
    """Nobody is waited for, however long the drain may take; the status is that of a stop that was asked for."""
    async with staged(signals=True, shutdown_timeout=1_000_000.0) as stage:
        clients = await two_in_decode(stage, protocol)
        await told_to_stop(stage)
        os.kill(os.getpid(), signal.SIGTERM)
        await stage.ended.wait()
        assert stage.status == [0]
        for client in clients:
            await client.close()


@both_protocols
async def test_stalled_readers_do_not_hold_a_second_signal(protocol: str) -> None:
    """Not for --write-timeout, and not for the time that last words have: the test's clock stands still."""
    async with staged(signals=True, write_timeout=1_000_000.0, shutdown_timeout=1_000_000.0) as stage:
        stage.tokenizer.loud = True
        client = await connect(protocol, stage.port, stalled=True, window=1000)
        await client.ask(CHAT, body("a" * 30, stream=True))
        await until(lambda: stage.device.waits)
        while not stage.run.server.num_blocked_writes:
            await stage.step()
        await told_to_stop(stage)
        os.kill(os.getpid(), signal.SIGTERM)
        await stage.ended.wait()
        assert stage.status == [0]
        await client.close()


@both_protocols
async def test_stalled_readers_do_not_hold_a_stop(protocol: str, mock_clock: trio.testing.MockClock) -> None:
    """Whatever --write-timeout is: the last words have a bound of their own."""
    async with staged(write_timeout=1_000_000.0) as stage:
        stage.tokenizer.loud = True
        client = await connect(protocol, stage.port, stalled=True, window=1000)
        await client.ask(CHAT, body("a" * 30, stream=True))
        await until(lambda: stage.device.waits)
        while not stage.run.server.num_blocked_writes:
            await stage.step()
        stage.run.stop.set()
        await until(lambda: not stage.engine.stats().running or stage.device.waits)
        mock_clock.jump(6)
        await stage.ended.wait()
        assert stage.status == [0]
        await client.close()


@both_protocols
async def test_a_dead_engine_says_so_to_everybody(protocol: str) -> None:
    """Each open stream gets one error event and [DONE], each plain request a 503; then the exit status is not 0."""
    async with staged(fail_at=9) as stage:
        clients = await two_in_decode(stage, protocol)
        stage.device.step(1000)
        streamed, plain = [await client.read() for client in clients]
        assert streamed.count(b'"error":') == 1
        assert streamed.endswith(b"data: [DONE]\n\n")
        assert clients[1].status >= 500
        assert b'"error":' in plain
        await stage.ended.wait()
        assert stage.status == [1]
        for client in clients:
            await client.close()
