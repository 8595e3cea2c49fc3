"""What clients do to connections: stop reading, send too slowly, too much or nonsense. The server stays."""

import json
import logging
import socket
from contextlib import suppress

import pytest
import trio

from triolet.api import body, connection
from triolet.api.connection import Http1

from .fake_engine import FakeEngine
from .rig import Rig, chat, raw_post, read_to_end, read_until, serving

HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n"


async def alive(rig: Rig) -> None:
    """The server answers."""
    assert (await rig.client.get("/health")).status_code == 200


async def stalled_reader(rig: Rig) -> trio.SocketStream:
    """A client with small buffers that asks for a stream and never reads it."""
    raw = trio.socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await raw.connect(("127.0.0.1", rig.run.server.port))
    stream = trio.SocketStream(raw)
    await stream.send_all(raw_post("/v1/chat/completions", chat(stream=True)))
    return stream


async def test_a_reader_that_stalls_is_dropped_and_its_request_freed() -> None:
    """After the write timeout the engine has the request no more, long before its end; others are served meanwhile."""
    engine = FakeEngine(pieces=["x" * 100_000] * 10_000)
    async with serving(engine, write_timeout=0.2) as rig:
        stream = await stalled_reader(rig)
        seen = await engine.wait_seen()
        await alive(rig)
        await seen.left.wait()
        assert not seen.finished
        await alive(rig)
        await stream.aclose()


async def test_stalled_readers_do_not_hold_the_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the write timeout is, stopping has a bound of its own."""
    monkeypatch.setattr("triolet.api.serve.LAST_WORDS_S", 0.2)
    engine = FakeEngine(pieces=["x" * 100_000] * 10_000)
    async with serving(engine, write_timeout=10_000.0) as rig:
        streams = [await stalled_reader(rig) for _ in range(3)]
        await engine.wait_seen(3)
        rig.run.stop.set()
        await rig.ended.wait()
        assert rig.status == 0
        assert not engine.open
        for stream in streams:
            await stream.aclose()


UPGRADE = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"


@pytest.mark.parametrize(
    "head",
    [
        UPGRADE,
        UPGRADE + b"sec-websocket-version: 13\r\n",
        UPGRADE + b"sec-websocket-version: 99\r\nsec-websocket-key: x\r\n",
        UPGRADE + b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
        HEALTH + b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n",
        HEALTH + b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: !!!\r\n",
    ],
)
async def test_an_upgrade_is_not_taken(head: bytes) -> None:
    """Websockets, well-formed or not, and h2c: the request is answered as HTTP/1.1, and the server goes on."""
    async with serving() as rig, await rig.connect() as stream:
        await stream.send_all(head + b"\r\n")
        assert (await read_until(stream, b"}")).startswith(b"HTTP/1.1 200")
        await alive(rig)


async def test_http2_can_be_refused() -> None:
    """With --no-http2 its preface is answered with 505 and the end of the connection."""
    async with serving(http2=False) as rig, await rig.connect() as stream:
        await stream.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        answer = await read_to_end(stream)
        assert answer.startswith(b"HTTP/1.1 505")
        assert b"HTTP/1.1 only" in answer
        await alive(rig)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\n\r\n", b"400"),
        (HEALTH + b"content-length: x\r\n\r\n", b"400"),
        (HEALTH + b"transfer-encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 200_000, b"431"),
    ],
)
async def test_what_is_no_request_ends_its_connection_alone(data: bytes, status: bytes) -> None:
    """A status where there can be one, then the end; the next client is served."""
    async with serving() as rig, await rig.connect() as stream:
        await stream.send_all(data)
        answer = await read_to_end(stream)
        assert answer.split(b" ")[1] == status
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert error["code"] == ("malformed_http" if status == b"400" else "headers_too_large")
        await alive(rig)


@pytest.mark.parametrize("num_bytes", [60_000, 66_000, 100_000, 120_000])
async def test_a_head_has_64_kib(num_bytes: int) -> None:
    """More is refused whether it comes in one piece or in several."""
    async with serving() as rig, await rig.connect() as stream:
        await stream.send_all(HEALTH + b"connection: close\r\nx: " + b"y" * num_bytes + b"\r\n\r\n")
        answer = await read_to_end(stream)
        assert answer.split(b" ")[1] == (b"200" if num_bytes < 65_536 else b"431")


@pytest.mark.parametrize("between", [b"\r\n", b"\r\n\r\n", b"\n"])
@pytest.mark.parametrize("later", [False, True])
async def test_line_ends_before_a_request_are_passed_over(between: bytes, later: bool) -> None:
    """Some clients send one after a body: the next request on the connection is served all the same."""
    async with serving() as rig, await rig.connect() as stream:
        first = raw_post("/tokenize", {"prompt": "a"})
        await stream.send_all(first if later else first + between)
        await read_until(stream, b'"count":')
        last = HEALTH + b"connection: close\r\n\r\n"
        if later:
            await stream.send_all(between[:1])
            await trio.testing.wait_all_tasks_blocked(0.001)
            last = between[1:] + last
        await stream.send_all(last)
        assert (await read_to_end(stream)).count(b"HTTP/1.1 200") == 1
        await alive(rig)


async def test_requests_follow_one_another_on_a_connection() -> None:
    """One after the other, and pipelined; streams too."""
    async with serving() as rig, await rig.connect() as stream:
        for _ in range(3):
            await stream.send_all(raw_post("/v1/chat/completions", chat(stream=True)))
            await read_until(stream, b"[DONE]\n\n\r\n0\r\n\r\n")
        await stream.send_all((HEALTH + b"\r\n") * 2 + HEALTH + b"connection: close\r\n\r\n")
        assert (await read_to_end(stream)).count(b'{"status":"ok"}') == 3


async def test_a_closing_client_gets_its_answer_and_the_end() -> None:
    """`connection: close` is kept on every kind of route, streams too."""
    async with serving() as rig:
        chat_path = "/v1/chat/completions"
        for path, fields in ((chat_path, chat(stream=True)), (chat_path, chat()), ("/tokenize", {"prompt": "a"})):
            async with await rig.connect() as stream:
                await stream.send_all(raw_post(path, fields, connection="close"))
                assert (await read_to_end(stream)).startswith(b"HTTP/1.1 200")
        await rig.wait_closed()


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("junk", [b"\r\n", b"\n", b"nonsense\x00\r\n\r\n", b"x" * 200_000])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_bytes_after_a_last_request_do_not_cost_its_answer(path: str, junk: bytes, later: bool) -> None:
    """Some clients send a line end too many; nobody is to answer it, and the request has its answer."""
    fields = {"prompt": "a"} if path == "/tokenize" else chat(stream=True)
    last = raw_post(path, fields, connection="close")
    async with serving() as rig:
        for data in (last, last.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"connection: close\r\n", b"")):
            async with await rig.connect() as stream:
                await stream.send_all(data if later else data + junk[:30_000])
                if later:
                    with suppress(trio.BrokenResourceError):
                        await stream.send_all(junk)
                answer = await stream.receive_some(100)
                assert answer.startswith(b"HTTP/1.1 200")
        await rig.wait_closed()
        await alive(rig)


async def test_a_body_framed_twice_is_refused_and_its_connection_closed() -> None:
    """A length beside chunks: a proxy in front could take another end of the request for true than we do."""
    head = b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n"
    twice = head + b"2\r\n{}\r\n0\r\n\r\n"
    async with serving() as rig, await rig.connect() as stream:
        await stream.send_all(twice + HEALTH + b"\r\n")
        answer = await read_to_end(stream)
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"has a Content-Length or a Transfer-Encoding, not both" in answer
        assert answer.count(b"HTTP/1.1 ") == 1
        await alive(rig)


@pytest.mark.parametrize("sent", [b"", HEALTH, HEALTH + b"\r\n"])
async def test_idle_connections_and_slow_heads_are_closed(sent: bytes, mock_clock: trio.testing.MockClock) -> None:
    """A connection that says nothing, half a head, or nothing more after an answer, ends by itself."""
    async with serving(keep_alive_timeout=10) as rig, await rig.connect() as stream:
        await stream.send_all(sent)
        if sent.endswith(b"\r\n\r\n"):
            assert (await read_until(stream, b"}")).startswith(b"HTTP/1.1 200")
        while not rig.run.server.num_connections:
            await trio.testing.wait_all_tasks_blocked(0.001)
        while rig.run.server.num_connections:
            await trio.testing.wait_all_tasks_blocked(0.001)
            mock_clock.jump(10)
        assert await read_to_end(stream) == b""
        await rig.wait_closed()


async def test_an_idle_connection_that_the_client_closes_is_gone_at_once() -> None:
    """It does not wait for the end of its keep-alive."""
    async with serving(keep_alive_timeout=10_000.0) as rig:
        stream = await rig.connect()
        await stream.send_all(HEALTH + b"\r\n")
        await read_until(stream, b"}")
        await stream.aclose()
        await rig.wait_closed()


async def test_a_body_that_does_not_come_is_a_408() -> None:
    """Slow senders are dropped on time, and told why."""
    async with serving(body_timeout=0.05) as rig, await rig.connect() as stream:
        await stream.send_all(raw_post("/v1/chat/completions", chat())[:-1])
        answer = await read_to_end(stream)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"did not arrive within 0.05 s" in answer


async def test_a_refused_client_that_sends_for_ever_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer was sent; dropping what it sends has a bound, also while the queue to the app is full."""
    monkeypatch.setattr(body, "LINGER_S", 0.05)
    monkeypatch.setattr(connection, "LAST_NEWS_S", 0.05)
    async with serving(api_key=("k",)) as rig:
        stream = await rig.connect()
        await stream.send_all(b"POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        with suppress(trio.BrokenResourceError):
            while True:
                await stream.send_all(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        await stream.aclose()
        await rig.wait_closed()
        await alive(rig)


async def test_an_error_in_a_connection_ends_it_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever goes wrong inside hypercorn: one error in the log, and the server goes on."""

    async def broken(self: Http1, request: object) -> None:
        raise ZeroDivisionError

    caplog.set_level(logging.ERROR)
    async with serving() as rig, await rig.connect() as stream:
        with monkeypatch.context() as patch:
            patch.setattr(Http1, "_create_stream", broken)
            await stream.send_all(HEALTH + b"\r\n")
            assert await read_to_end(stream) == b""
        await alive(rig)
    assert [record.getMessage() for record in caplog.records] == [
        "a connection ended because of an error in the server"
    ]
