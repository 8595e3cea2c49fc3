"""Refusing at the door: the same answer as the long way's, for whatever is plain, and nothing for what is not."""

import errno
import json
import socket
from collections.abc import Mapping
from typing import Any, cast

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.door import HEAD_WAIT_S, PEEK_BYTES, Door, PacedListener, refuse_at
from triolet.api.keys import KeyRing
from triolet.engine.core.errors import Overloaded

from .fake_engine import FakeEngine
from .rig import chat, raw_post, read_to_end, serving

CHAT = "/v1/chat/completions"
KEYS = KeyRing(("secret",), ())


def closed(keys: KeyRing = KEYS) -> Door:
    return Door(lambda: Overloaded("The queue is full.", retry_after_s=3), keys, [CHAT], "/proxy")


def asking(path: str = CHAT, **headers: str) -> bytes:
    return raw_post(path, chat(), **{"authorization": "Bearer secret", **headers})


def read(answer: bytes) -> tuple[int, Mapping[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split(" ")[1]), dict(line.lower().split(": ", 1) for line in lines), body


def test_an_open_door_answers_nobody() -> None:
    """While there is room, everything goes on to the parser."""
    door = Door(lambda: None, KEYS, [CHAT])
    assert not door.is_closed
    assert door.answer(asking()) is None


@pytest.mark.parametrize("path", [CHAT, "/proxy" + CHAT])
def test_a_closed_door_says_when_to_come_back(path: str) -> None:
    """503, Retry-After, the request's own id, and the end of the connection."""
    answer = closed().answer(asking(path, x_request_id="mine"))
    assert answer is not None
    status, headers, body = read(answer)
    assert status == 503
    assert (headers["retry-after"], headers["x-request-id"], headers["connection"]) == ("3", "mine", "close")
    assert int(headers["content-length"]) == len(body)
    assert json.loads(body)["error"]["code"] == "overloaded"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        asking()[:-1],  # not all there
        asking() + b"x",  # more than there should be
        asking().replace(b"POST", b"GET"),
        asking("/v1/models"),
        asking("/v1/requests/x/cancel"),
        asking("//v1/chat/completions"),
        asking("/v1/chat/completion%73"),
        asking("http://test" + CHAT),
        asking().replace(b"HTTP/1.1", b"HTTP/2.0"),
        asking().replace(b"Bearer secret", b"Bearer wrong"),
        asking().replace(b"authorization", b"x"),
        asking(origin="http://page.example"),
        asking(transfer_encoding="chunked"),
        asking(expect="100-continue"),
        asking(content_length="1"),
        asking().replace(b"host: test", b"host : test"),
        asking().replace(b"host: test", b"host test"),
        asking().replace(b"host: test", b" folded: test"),
        asking().replace(b"content-length: ", b"content-length: +"),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_not_plain_takes_the_long_way(data: bytes) -> None:
    """A wrong key, a half body, another route, anything odd: the parser and the gate decide about it."""
    assert closed().answer(data) is None


@given(st.binary(max_size=300) | st.binary(max_size=60).map(lambda junk: asking()[:40] + junk + asking()[40:]))
def test_no_bytes_break_the_door(data: bytes) -> None:
    """Whatever comes, it has an answer that is whole, or none."""
    answer = closed().answer(data)
    assert answer is None or read(answer)[0] == 503


@pytest.mark.parametrize("late", [False, True])
async def test_the_door_and_the_gate_say_the_same(late: bool) -> None:
    """Refused at the door, the same way once the connection is known, or by the gate: one status, one body."""
    engine = FakeEngine()
    async with serving(engine, max_body_size=10 * PEEK_BYTES) as rig:
        engine.full = True
        bodies = set()
        for fields in (chat(), chat(user="u" * 2 * PEEK_BYTES)):
            async with await rig.connect() as stream:
                if late:
                    await trio.testing.wait_all_tasks_blocked(0.001)
                await stream.send_all(raw_post(CHAT, fields, x_request_id="mine"))
                status, headers, body = read(await read_to_end(stream))
            assert (status, headers["x-request-id"], headers["retry-after"]) == (503, "mine", "7")
            assert headers["connection"] == "close"
            bodies.add(body)
        assert len(bodies) == 1
        assert not engine.seen
        engine.full = False
        assert (await rig.post(CHAT, chat())).status_code == 200
        await rig.wait_closed()


async def test_a_closed_door_lets_other_routes_in() -> None:
    """Health, metrics and cancelling are for exactly such moments."""
    engine = FakeEngine()
    async with serving(engine) as rig:
        engine.full = True
        for _ in range(20):
            async with await rig.connect() as stream:
                await stream.send_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                assert (await read_to_end(stream)).startswith(b"HTTP/1.1 200")
        await rig.wait_closed()


async def test_a_client_that_says_nothing_at_a_closed_door_goes_as_any_other() -> None:
    """It has its time for a head, and its leaving is seen."""
    engine = FakeEngine()
    async with serving(engine, keep_alive_timeout=0.3) as rig:
        engine.full = True
        async with await rig.connect():
            pass
        async with await rig.connect() as stream:
            assert await read_to_end(stream) == b""
        await rig.wait_closed()


async def test_a_request_that_comes_as_the_wait_ends_has_its_answer(mock_clock: trio.testing.MockClock) -> None:
    """The time is over while it is looked at: its bytes are not taken away without a word."""

    def refusal() -> Overloaded:
        mock_clock.jump(HEAD_WAIT_S)
        return Overloaded("The queue is full.", retry_after_s=3)

    ours, theirs = trio.socket.socketpair()
    with theirs:
        await theirs.send(asking())
        assert await refuse_at(Door(refusal, KEYS, [CHAT]), trio.SocketStream(ours))
        assert read(await read_to_end(trio.SocketStream(theirs)))[0] == 503


class Failing:
    """A listening socket whose first connections have failed by the time they are accepted."""

    def __init__(self, listening: socket.socket, faults: list[int]) -> None:
        self._listening = listening
        self._faults = faults

    def accept(self) -> tuple[socket.socket, Any]:
        if self._faults:
            raise OSError(self._faults.pop(), "failed")
        return self._listening.accept()

    def close(self) -> None:
        self._listening.close()


async def test_a_connection_that_failed_in_the_queue_is_passed_over() -> None:
    """Whatever accept(2) may say of one: the next is served. A lack of descriptors is told, for that takes a pause."""
    names = "ECONNABORTED EHOSTDOWN EHOSTUNREACH ENETDOWN ENETUNREACH ENOPROTOOPT ENONET EOPNOTSUPP EPERM EPROTO"
    faults = [getattr(errno, name) for name in names.split() if hasattr(errno, name)]
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()):
        door = Door(lambda: None, KEYS, [CHAT])
        listener = PacedListener(cast("socket.socket", Failing(listening, faults)), door, answers=True)
        await (await listener.accept()).aclose()
        assert not faults
        faults.append(errno.EMFILE)
        with pytest.raises(OSError, match="failed"):
            await listener.accept()
