"""What is too long, too much, too slow or out of range: refused with a status, before anything is spent on it."""

import json
import re
from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing

from tests.api.fake_engine import FakeEngine
from tests.api.rig import Rig, chat, error_of, raw_post, read_to_end, serving
from triolet.api import server as server_module
from triolet.api.server import TURNED_AWAY

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"


async def alive(rig: Rig) -> None:
    """The server answers, holds no request, and the engine has heard of none."""
    assert (await rig.client.get("/health")).status_code == 200
    assert not rig.run.lifecycle.open_requests
    assert not rig.engine.seen


async def send_for_ever(stream: trio.SocketStream, piece: bytes, times: int) -> int:
    """Until all is sent or the server closes. Returns how many pieces went out."""
    for sent in range(times):
        try:
            await stream.send_all(piece)
        except trio.BrokenResourceError:
            return sent
    return times


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nhost: x\r\nx: ",  # one header
        b"GET /health",  # the target
        b"x",  # the method
        b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: ",
    ],
)
async def test_a_head_of_a_gibibyte_is_cut_at_its_limit(head: bytes) -> None:
    """431 (400 where it is no request at all), after some 64 KiB, and the rest is not read."""
    async with serving() as rig, await rig.connect() as stream:
        await stream.send_all(head)
        assert await send_for_ever(stream, b"7" * 65536, 16 * 1024) < 16 * 1024
        with suppress(trio.BrokenResourceError):
            assert (await stream.receive_some()).split(b" ")[1:2] in ([b"431"], [b"400"], [])
        await rig.wait_closed()
        await alive(rig)


@pytest.mark.parametrize("count", [300, 10_000])
async def test_many_headers_are_refused(count: int) -> None:
    """431, whether they are too many or too long together."""
    async with serving() as rig, await rig.connect() as stream:
        lines = b"".join(b"a%d:%s\r\n" % (index, b"" if count == 300 else b"bcdef") for index in range(count))
        await stream.send_all(b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + lines + b"\r\n")
        assert (await read_to_end(stream)).startswith(b"HTTP/1.1 431")
        await alive(rig)


async def test_a_chunked_body_without_end_is_cut_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """413 says the limit as soon as it is passed; what still comes is dropped for a while, and no longer."""
    monkeypatch.setattr("triolet.api.body.LINGER_BYTES", 256 * 1024)
    async with serving(max_body_size=100_000) as rig, await rig.connect() as stream:
        await stream.send_all(POST + b"transfer-encoding: chunked\r\n\r\n")
        answers: list[bytes] = []

        async def read() -> None:
            answers.append(await read_to_end(stream))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            assert await send_for_ever(stream, b"4000\r\n" + b"x" * 0x4000 + b"\r\n", 100_000) < 100_000
        assert answers[0].startswith(b"HTTP/1.1 413")
        assert b"at most 100000 bytes (--max-body-size)" in answers[0]
        await rig.wait_closed()
        await alive(rig)


@pytest.mark.parametrize("length", [b"10737418240", b"9" * 400, b"-1", b"1e9", b"5, 6", b"0x10"])
async def test_an_announced_length_is_checked_before_the_body(length: bytes) -> None:
    """10 GiB are refused when they are announced; what is no length is a 400."""
    async with serving() as rig, await rig.connect() as stream:
        await stream.send_all(POST + b"content-length: " + length + b"\r\nconnection: close\r\n\r\n")
        await stream.send_eof()
        status = (await read_to_end(stream)).split(b" ")[1]
        assert status == (b"413" if length.isdigit() and len(length) < 20 else b"400")
        await alive(rig)


async def test_two_lengths_or_two_framings_are_no_request() -> None:
    """Where a proxy and we could disagree about where a request ends, there is none (request smuggling)."""
    body = json.dumps({"prompt": "a"}).encode()
    heads = [
        b"content-length: %d\r\ncontent-length: %d\r\n" % (len(body), len(body) + 1),
        b"transfer-encoding: chunked, identity\r\n",
        b"transfer-encoding: xchunked\r\n",
        b"content-length : %d\r\n" % len(body),
        b"content-length: %d\r\n folded\r\n" % len(body),
    ]
    async with serving() as rig:
        for head in heads:
            async with await rig.connect() as stream:
                await stream.send_all(POST + head + b"\r\n" + body + b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
                answer = await read_to_end(stream)
                assert answer.count(b"HTTP/1.1") == 1, head
                assert answer.split(b" ")[1] in (b"400", b"501"), head
        await alive(rig)


@pytest.mark.parametrize("rest", [b"GET /health HTTP/1.1\r\nx: y", POST + b"content-length: 9999\r\n\r\n"])
async def test_a_sender_that_drips_is_closed_on_time(rest: bytes) -> None:
    """A byte now and then keeps no connection: the head and the body have a time in all, not between two bytes."""
    async with serving(keep_alive_timeout=0.3, body_timeout=0.3) as rig, await rig.connect() as stream:
        await stream.send_all(rest)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while rig.run.server.num_connections:
                await stream.send_all(b"z")
                await trio.testing.wait_all_tasks_blocked(0.01)
        await rig.wait_closed()
        await alive(rig)


async def test_a_connection_too_many_is_turned_away() -> None:
    """503 with Retry-After and the end; when one of the others goes, the next is served."""
    async with serving(max_connections=3) as rig:
        held = [await rig.connect() for _ in range(3)]
        for stream in held:
            await stream.send_all(HEALTH)
            await stream.receive_some()
        async with await rig.connect() as stream:
            answer = await read_to_end(stream)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 5" in head
        assert b"content-length: %d" % len(body) in head
        assert json.loads(body)["error"]["code"] == "overloaded"
        for stream in held:
            await stream.aclose()
        await rig.wait_closed()
        assert (await rig.client.get("/health")).status_code == 200


@pytest.mark.parametrize("num_bytes", [0, 10_000, 3_000_000])
async def test_who_is_turned_away_is_told_whatever_it_has_sent(num_bytes: int) -> None:
    """Bytes that nobody reads would make the close a reset, and a reset may overtake the answer: it comes whole, to
    several at once, with the end of the connection behind it, whether or not the client reads while it sends."""
    async with serving(max_connections=1) as rig, await rig.connect() as held:
        await held.send_all(HEALTH)
        await held.receive_some()
        told: list[bytes] = []

        async def ask() -> None:
            async with await rig.connect() as stream:
                await stream.send_all(raw_post("/v1/completions", {"prompt": "a" * num_bytes}))
                answer = b""
                while data := await stream.receive_some(65536):  # a reset would raise
                    answer += data
                told.append(answer)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(ask)
        assert told == [TURNED_AWAY] * 8
        while rig.run.server.num_connections > 1:
            await trio.testing.wait_all_tasks_blocked(0.001)


async def test_who_lingers_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were turned away and stay count as no connections, and are few; the others are closed at once."""
    monkeypatch.setattr(server_module, "MAX_LINGERING", 2)
    monkeypatch.setattr(server_module, "LINGER_S", 1000)
    async with serving(max_connections=1) as rig:
        async with await rig.connect() as held:
            await held.send_all(HEALTH)
            await held.receive_some()
            away = [await rig.connect() for _ in range(5)]
            assert [await read_to_end(stream) for stream in away] == [TURNED_AWAY] * 5
            while rig.run.server.num_connections > 3:
                await trio.testing.wait_all_tasks_blocked(0.001)
        while rig.run.server.num_connections > 2:
            await trio.testing.wait_all_tasks_blocked(0.001)
        async with await rig.connect() as stream:
            await stream.send_all(HEALTH)
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
        for stream in away:
            await stream.aclose()
        await rig.wait_closed()


HUGE = [
    ("n", 10**9),
    ("n", -1),
    ("n", 10**400),
    ("best_of", 10**9),
    ("max_tokens", -(2**63)),
    ("max_tokens", 10**400),
    ("min_tokens", 10**400),
    ("top_k", 10**400),
    ("top_k", -(10**18)),
    ("seed", 10**400),
    ("temperature", 10**400),
    ("temperature", -1e308),
    ("top_p", 1e308),
    ("min_p", -1e-300),
    ("length_penalty", 1e308),
    ("timeout", -1),
    ("timeout", 10**400),
    ("max_queue_time", 0),
    ("priority", 2**63),
    ("cache_salt", "x" * 10**6),
    ("cache_salt", ""),
    ("cache_salt", "a\0b"),
    ("cache_salt", "../a"),
    ("cache_salt", "a@b"),
    ("cache_salt", "a\\b"),
    ("request_id", "x" * 10**6),
    ("stop", ["x"] * 10**6),
    ("stop_token_ids", [10**400]),
    ("stop_token_ids", [-1] * 10**6),
    ("logprobs", 10**9),
    ("top_logprobs", 10**9),
    ("prompt_logprobs", 10**9),
    ("logit_bias", {str(token): 1 for token in range(10**5)}),
    ("logit_bias", {str(10**30): 1}),
    ("allowed_token_ids", [1] * 10**6),
    ("bad_words", ["x"] * 10**6),
    ("truncate_prompt_tokens", 10**400),
    ("repetition_detection", {"max_pattern_size": 10**9}),
    ("structured_outputs", {"regex": "x" * 10**6}),
    ("structured_outputs", {"choice": ["x"] * 10**6}),
]


@pytest.mark.parametrize(("field", "value"), HUGE, ids=[f"{field}-{index}" for index, (field, _) in enumerate(HUGE)])
async def test_a_value_out_of_range_is_refused_before_the_engine_hears_of_it(field: str, value: Any) -> None:
    """400 that names the field, in a message of a bounded length, on both routes."""
    async with serving() as rig:
        for path, body in ((CHAT, chat()), (COMPLETIONS, {"prompt": "a"})):
            response = await rig.post(path, {**body, field: value})
            assert response.status_code == 400
            error = error_of(response)
            assert re.split(r"[.\[]", error["param"] or "")[0] in (field, "")
            assert len(response.content) < 1000
        await alive(rig)


@pytest.mark.parametrize(
    "literal",
    ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "nan", "0x10", "1_000", "01", "+1", "7" * 400, "7" * 5000],
)
@pytest.mark.parametrize("field", ["temperature", "n", "max_tokens", "timeout", "unknown"])
async def test_what_is_no_number_of_json_is_refused(field: str, literal: str) -> None:
    """NaN, infinities, more digits than Python prints. (In a field that nobody reads, numbers are skipped.)"""
    async with serving() as rig:
        response = await rig.post(COMPLETIONS, f'{{"prompt":"a","{field}":{literal}}}'.encode())
        assert response.status_code == 400 or (field == "unknown" and literal.strip("-")[0] in "17")
        assert len(response.content) < 1000


MUCH: list[tuple[str, bytes, tuple[int, ...]]] = [
    ("prompts", b'{"prompt":[' + b",".join([b'"a"'] * 10**6) + b"]}", (400,)),
    ("prompts of tokens", b'{"prompt":[' + b",".join([b"[1]"] * 10**6) + b"]}", (400,)),
    ("tokens", b'{"prompt":[' + b",".join([b"1"] * 10**6) + b"]}", (400,)),
    ("empty lists", b'{"prompt":[' + b",".join([b"[]"] * 5 * 10**6) + b"]}", (400,)),
    ("messages", b'{"messages":[' + b",".join([b'{"role":"user","content":""}'] * 400_000) + b"]}", (400,)),
    ("parts", b'{"messages":[{"role":"user","content":[' + b",".join([b'{"type":"x"}'] * 10**6) + b"]}]}", (400,)),
    ("nesting", b'{"messages":[{"role":"user","content":' + b"[" * 200_000 + b"]" * 200_000 + b"}]}", (400,)),
    ("nested kwargs", b'{"chat_template_kwargs":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}", (400,)),
    ("brackets in text", b'{"prompt":"' + b"[" * 300_000 + b'"}', (400,)),
    ("biases", b'{"prompt":"a","logit_bias":{' + b",".join(b'"%d":1' % i for i in range(10**6)) + b"}}", (200, 400)),
]


@pytest.mark.parametrize(("name", "body", "statuses"), MUCH, ids=[name for name, _, _ in MUCH])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
async def test_much_of_anything_is_refused(path: str, name: str, body: bytes, statuses: tuple[int, ...]) -> None:
    """A million of them is a 400, and the answer is short. (A field that nobody reads costs a look, and no memory.)"""
    async with serving() as rig:
        response = await rig.post(path, body)
        assert response.status_code in (*statuses, 400)
        assert len(response.content) < 1000
        assert not rig.engine.open
        assert (await rig.client.get("/health")).status_code == 200


@pytest.mark.parametrize("body", [{"tokens": [1] * 10**6}, {"tokens": [2**31]}, {"tokens": [-1]}, {"tokens": [5000]}])
async def test_detokenizing_has_bounds(body: dict[str, Any]) -> None:
    """No more tokens than a request may have, and none that the vocabulary lacks."""
    async with serving() as rig:
        assert (await rig.post("/detokenize", body)).status_code == 400
        await alive(rig)


@pytest.mark.parametrize("field", ["prompt_embeds", "logits_processors", "kv_transfer_params", "mm_processor_kwargs"])
async def test_tensors_code_and_transfers_are_not_taken(field: str) -> None:
    """What could carry a tensor, code or an address of memory is ignored like any unknown field: nothing decodes it."""
    values: list[Any] = ["gASVCgAAAAAAAACMBmFiYw==", {"indices": [[-1, 2**62]], "size": [1]}, ["os.system"]]
    async with serving() as rig:
        for value in values:
            response = await rig.post(COMPLETIONS, {"prompt": "a", field: value})
            assert response.status_code == 200
            assert not hasattr(rig.engine.seen[-1].params, field)


async def test_a_url_in_a_message_is_never_fetched() -> None:
    """Images by URL are a 400, and a link in a text is text: nobody connects to it."""
    engine = FakeEngine()
    async with serving(engine) as rig, trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        visits: list[object] = []

        async def visit(stream: trio.SocketStream) -> None:
            visits.append(stream)

        nursery.start_soon(trio.serve_listeners, visit, listeners)
        for host in ("127.0.0.1", "localhost", "[::1]", r"ok\@127.0.0.1"):
            url = f"http://{host}:{port}/x.png"
            parts = [{"type": "image_url", "image_url": {"url": url}}]
            response = await rig.post(CHAT, {"messages": [{"role": "user", "content": parts}]})
            assert response.status_code == 400
            assert (await rig.post(CHAT, {"messages": [{"role": "user", "content": f"![]({url})"}]})).status_code == 200
        assert not visits
        nursery.cancel_scope.cancel()
