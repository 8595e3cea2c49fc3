"""HTTP/2 by itself: what may go wrong in a connection ends that connection or stream alone."""

import json
import ssl
from pathlib import Path

import h2.connection
import h2.errors
import pytest
import trio
import trustme
from h2.settings import SettingCodes

from .clients import Http2Client, connect
from .stage import Stage, staged, until
from .states import CHAT, body, choices_of


async def client_of(stage: Stage) -> Http2Client:
    client = await connect("http/2", stage.port)
    assert isinstance(client, Http2Client)
    return client


async def alive(stage: Stage) -> None:
    """Another client is served."""
    client = await client_of(stage)
    await client.answer("/health")
    assert client.status == 200
    await client.close()


async def read_to_end(client: Http2Client) -> int | None:
    """The error code with which the server ended the connection."""
    client.ended = False
    while not client.ended:
        await client._read()
    return client.goaway_code


async def test_requests_follow_one_another_and_run_side_by_side() -> None:
    """One connection: Quart's routes and the generating ones, one after the other, and two at a time."""
    async with staged() as stage:
        client = await client_of(stage)
        for path in ("/health", "/v1/models", "/nothing"):
            await client.answer(path)
        assert client.status == 404
        await client.ask(CHAT, body("hello", stream=True))
        first = client.stream_id
        await client.ask(CHAT, body("olleh", stream=True))
        await until(lambda: stage.num_open == 2)
        stage.device.step(1000)
        assert choices_of(await client.read(), streamed=True)[0].text == "olleh"
        while not client.bodies.get(first, b"").endswith(b"data: [DONE]\n\n"):  # it may be the last to end
            await client._read()
        assert choices_of(client.bodies[first], streamed=True)[0].text == "hello"
        await client.close()
        await stage.wait_all_gone()


async def test_a_long_body_comes_whole() -> None:
    """Longer than the window that a stream begins with: the server opens it as it reads."""
    async with staged(step_freely=True) as stage:
        client = await client_of(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.ask_long, "/tokenize", {"prompt": "x" * 300_000})
            assert json.loads(await client.read())["count"] == 300_000
        await client.close()


async def test_refusals_have_no_hop_by_hop_headers() -> None:
    """401 and 413 come as they do over HTTP/1.1, without `connection: close`, and the connection goes on."""
    async with staged(api_key=("k",), max_body_size=100, step_freely=True) as stage:
        client = await client_of(stage)
        await client.answer(CHAT, body("hello"))
        assert client.status == 401
        assert "connection" not in client.headers
        await client.answer(CHAT, body("hello" * 100), authorization="Bearer k")
        assert client.status == 413
        await client.answer("/health")
        assert client.status == 200
        await client.close()
        await stage.wait_all_gone()


@pytest.mark.parametrize(
    "head",
    [
        {":method": "CONNECT", ":authority": "x:1"},
        {":method": "GET", ":path": "/caf\u00e9", ":scheme": "http", ":authority": "x"},
        {":method": "G T", ":path": "/", ":scheme": "http", ":authority": "x"},
    ],
)
async def test_what_is_no_request_resets_its_stream(head: dict[str, str]) -> None:
    """PROTOCOL_ERROR for the stream or the connection; the next client is served."""
    async with staged() as stage:
        client = await client_of(stage)
        client._h2.config.validate_outbound_headers = False
        client.stream_id = client._h2.get_next_available_stream_id()
        client._h2.send_headers(client.stream_id, list(head.items()), end_stream=True)
        await client._flush()
        await client.read()
        assert client.status == 0
        await alive(stage)
        await client.close()
        await stage.wait_all_gone()


async def test_nonsense_ends_the_connection_alone() -> None:
    """A broken frame is answered with GOAWAY; requests of that connection are freed."""
    async with staged() as stage:
        client = await client_of(stage)
        await client.ask(CHAT, body(stream=True))
        await until(lambda: stage.device.waits)
        await client.stream.send_all(b"\xff" * 100)
        assert await read_to_end(client) == h2.errors.ErrorCodes.FRAME_SIZE_ERROR
        await until(lambda: stage.num_open == 0)
        await stage.step()
        await alive(stage)
        await client.close()
        await stage.wait_all_gone()


async def test_more_streams_than_allowed_are_an_error() -> None:
    """The server says how many it takes, and one more ends the connection and frees them all."""
    async with staged(max_num_queued_reqs=200) as stage:
        client = await client_of(stage)
        await client.answer("/health")
        assert client._h2.remote_settings.max_concurrent_streams == 100
        client._h2.remote_settings.update({SettingCodes.MAX_CONCURRENT_STREAMS: 1000})
        client._h2.remote_settings.acknowledge()
        for _ in range(101):
            await client.ask(CHAT, body(stream=True))
        assert await read_to_end(client) == h2.errors.ErrorCodes.PROTOCOL_ERROR
        await until(lambda: stage.num_open == 0)
        stage.device.step(1000)
        await client.close()
        await stage.wait_all_gone()


async def test_streams_that_are_opened_to_be_reset_leave_nothing() -> None:
    """A thousand at once: their requests are freed as they come, and the connection serves on."""
    async with staged() as stage:
        client = await client_of(stage)
        await client.answer("/health")
        for _ in range(1000):
            stream_id = client._h2.get_next_available_stream_id()
            head = [(":method", "GET"), (":path", "/health"), (":scheme", "http"), (":authority", "x")]
            client._h2.send_headers(stream_id, head)
            client._h2.reset_stream(stream_id)
        await client._flush()
        await client.answer("/health")
        assert client.status == 200
        await client.close()
        await stage.wait_all_gone()


async def test_more_tasks_than_streams_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where streams are reset faster than requests can be freed: ENHANCE_YOUR_CALM, and all of them are freed."""
    monkeypatch.setattr("triolet.api.http2.TASKS_MAX", 5)
    async with staged() as stage:
        client = await client_of(stage)
        for _ in range(10):
            await client.ask(CHAT, body(stream=True))
        assert await read_to_end(client) == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
        await until(lambda: stage.num_open == 0)
        stage.device.step(1000)
        await alive(stage)
        await client.close()
        await stage.wait_all_gone()


async def test_pings_of_a_client_that_does_not_read_are_bounded() -> None:
    """Its own frames are answered as far as it reads; past a bound the server reads no more of them."""
    async with staged() as stage:
        client = await connect("http/2", stage.port, stalled=True)
        assert isinstance(client, Http2Client)
        await client.answer("/health")
        pings = h2.connection.H2Connection()
        pings.initiate_connection()
        pings.data_to_send()
        for _ in range(1000):
            pings.ping(b"12345678")
        thousand = pings.data_to_send()
        async with trio.open_nursery() as nursery:

            async def send_for_ever() -> None:
                for _ in range(5000):
                    await client.stream.send_all(thousand)
                raise AssertionError("85 MB of pings were read")

            nursery.start_soon(send_for_ever)
            await until(lambda: stage.run.server.num_blocked_writes)
            await alive(stage)
            nursery.cancel_scope.cancel()
        await client.leave("reset")
        await stage.wait_all_gone()


async def test_a_stopping_server_takes_no_new_streams() -> None:
    """Streams under way have their last word, then GOAWAY comes."""
    async with staged() as stage:
        client = await client_of(stage)
        await client.ask(CHAT, body(stream=True))
        await until(lambda: stage.device.waits)
        stage.run.stop.set()
        assert b'"code":"shutting_down"' in await client.read()
        assert await read_to_end(client) == h2.errors.ErrorCodes.NO_ERROR
        await client.close()
        await stage.ended.wait()


@pytest.mark.parametrize(("http2", "offered", "spoken"), [(True, "h2", "h2"), (False, "h2", None), (True, None, None)])
async def test_tls_offers_it_by_alpn(http2: bool, offered: str | None, spoken: str | None, tmp_path: Path) -> None:
    """A client that asks for h2 gets it unless --no-http2; one that doesn't speaks HTTP/1.1."""
    authority = trustme.CA()
    certificate = tmp_path / "both.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    async with staged(http2=http2, step_freely=True, ssl_certfile=str(certificate)) as stage:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        if offered is not None:
            context.set_alpn_protocols([offered, "http/1.1"])
        raw = await trio.open_tcp_stream("127.0.0.1", stage.port)
        stream = trio.SSLStream(raw, context, server_hostname="127.0.0.1")
        await stream.do_handshake()
        assert stream.selected_alpn_protocol() == (spoken or ("http/1.1" if offered else None))
        if spoken:
            client = Http2Client(stream)  # type: ignore[arg-type]
            await client.ask(CHAT, body("hello", stream=True))
            assert choices_of(await client.read(), streamed=True)[0].text == "hello"
        else:
            await stream.send_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
        await trio.aclose_forcefully(stream)
        await stage.wait_all_gone()
