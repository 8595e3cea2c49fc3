"""Clients that read or send too slowly: dropped on time, and nobody else notices. The clock is the test's."""

import pytest
import trio
import trio.testing

from .clients import PROTOCOLS, Client, Http2Client, connect
from .stage import Stage, staged, until
from .states import CHAT, body, choices_of

both_protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
TIMEOUTS = {"write_timeout": 30.0, "body_timeout": 60.0, "keep_alive_timeout": 10.0}


async def stall(stage: Stage, protocol: str, *, window: int, stream: bool = True) -> Client:
    """A client that asks for more than it reads."""
    client = await connect(protocol, stage.port, stalled=True, window=window)
    stage.tokenizer.loud = True
    await client.ask(CHAT, body("a" * 30, stream=stream))
    await until(lambda: stage.device.waits)
    if stream:
        while not stage.run.server.num_blocked_writes:
            await stage.step()
    else:
        stage.device.step(1000)
        await until(lambda: stage.run.server.num_blocked_writes)
    stage.tokenizer.loud = False
    return client


async def ask_and_read(client: Client) -> bytes:
    await client.ask(CHAT, body("hello"))
    return await client.read()


@pytest.mark.parametrize(("protocol", "window"), [("http/1.1", 0), ("http/2", 10_000_000), ("http/2", 1000)])
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_stalled_reader_is_dropped_and_its_request_freed(
    protocol: str, window: int, streamed: bool, mock_clock: trio.testing.MockClock
) -> None:
    """After --write-timeout, not before; another client is served before and after."""
    async with staged(**TIMEOUTS) as stage:
        client = await stall(stage, protocol, window=window, stream=streamed)
        stage.device.step(1000)
        for jump, num_open in ((29.0, 1), (2.0, 0)):
            mock_clock.jump(jump)
            await until(lambda num_open=num_open: stage.num_open == num_open)
            other = await connect(protocol, stage.port)
            assert choices_of(await ask_and_read(other), streamed=False)[0].text == "hello"
            await other.close()
        await until(stage.engine_is_empty)
        await client.close()
        await stage.wait_all_gone()


async def test_a_stalled_stream_leaves_the_others_of_its_connection_alone(mock_clock: trio.testing.MockClock) -> None:
    """HTTP/2: the stream whose window stays shut is reset; one beside it has its answer, before and after."""
    async with staged(**TIMEOUTS) as stage:
        client = await connect("http/2", stage.port, window=1000)
        assert isinstance(client, Http2Client)
        stage.tokenizer.loud = True
        await client.ask(CHAT, body("a" * 30, stream=True))
        stalled_id = client.stream_id
        await until(lambda: stage.device.waits)
        while not stage.run.server.num_blocked_writes:
            await stage.step()
        stage.tokenizer.loud = False
        stage.device.step(1000)
        client.unread = {stalled_id}
        assert choices_of(await ask_and_read(client), streamed=False)[0].text == "hello"
        mock_clock.jump(31)
        await until(lambda: stage.num_open == 0)
        assert choices_of(await ask_and_read(client), streamed=False)[0].text == "hello"
        assert client.reset_streams == {stalled_id}
        await client.close()
        await stage.wait_all_gone()


@both_protocols
async def test_a_slow_body_is_refused_on_time(protocol: str, mock_clock: trio.testing.MockClock) -> None:
    """408 after --body-timeout, with the reason."""
    async with staged(**TIMEOUTS) as stage:
        client = await connect(protocol, stage.port)
        await client.ask_in_part(CHAT, body("hello"))
        await until(lambda: stage.run.server.num_connections == 1)
        mock_clock.jump(59)
        await until(lambda: stage.run.server.num_connections == 1)
        mock_clock.jump(2)
        await client.read_head()
        assert client.status == 408
        assert stage.num_open == 0
        await client.close()
        mock_clock.jump(5)
        await stage.wait_all_gone()


@pytest.mark.parametrize(
    "sent", [b"", b"POST / HTTP/1.1\r\nhost:", b"PRI * HTTP/2.0\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
)
async def test_a_slow_head_is_dropped_on_time(sent: bytes, mock_clock: trio.testing.MockClock) -> None:
    """A connection that gets to no request ends after --keep-alive-timeout, whatever protocol it begins with."""
    async with staged(**TIMEOUTS) as stage:
        stream = await trio.open_tcp_stream("127.0.0.1", stage.port)
        await stream.send_all(sent)
        await until(lambda: stage.run.server.num_connections == 1)
        mock_clock.jump(11)
        while await stream.receive_some():
            pass
        await stream.aclose()
        await stage.wait_all_gone()


async def test_a_watcher_that_stops_reading_is_dropped_on_time(mock_clock: trio.testing.MockClock) -> None:
    """It holds one event of the live view and no more, another one is told on, and after --write-timeout it is gone."""
    async with staged(**TIMEOUTS) as stage:
        hub = stage.run.hub
        assert hub is not None
        stalled, other = await connect("http/2", stage.port, window=100), await connect("http/1.1", stage.port)
        await stalled.ask("/v1/live")
        await until(lambda: stage.run.server.num_blocked_writes == 1)
        await other.ask("/v1/live")
        await other.read_until(b'"kind":"snapshot"')
        stage.device.step(float("inf"))
        asking = await connect("http/1.1", stage.port)
        assert choices_of(await ask_and_read(asking), streamed=False)[0].text == "hello"
        for _ in range(5):
            mock_clock.jump(0.2)
            await until(lambda: True)
        await other.read_until(b'"kind":"change"')
        assert hub.num_watchers == 2
        mock_clock.jump(30)
        await until(lambda: hub.num_watchers == 1)
        for client in (stalled, other, asking):
            await client.close()
        await until(lambda: hub.num_watchers == 0)
        await stage.wait_all_gone()
