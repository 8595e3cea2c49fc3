"""How a stream is framed: in chunks over HTTP/1.1, by the connection's end over HTTP/1.0."""

import h11
import pytest

from .rig import chat, raw_post, read_to_end, read_until, serving

STREAM = raw_post("/v1/chat/completions", chat(stream=True))


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_a_stream_is_framed_as_the_client_can_read_it(version: str) -> None:
    """The same events by h11's reading of it; only HTTP/1.1 knows chunks."""
    async with serving() as rig:
        closing = STREAM.replace(b"HTTP/1.1\r\n", f"HTTP/{version}\r\nconnection: close\r\n".encode())
        async with await rig.connect() as stream:
            await stream.send_all(closing)
            answer = await read_to_end(stream)
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="POST", target="/", headers=[("host", "x"), ("connection", "close")]))
    reader.send(h11.EndOfMessage())
    reader.receive_data(answer)
    reader.receive_data(b"")
    response = reader.next_event()
    assert isinstance(response, h11.Response)
    assert ((b"transfer-encoding", b"chunked") in response.headers) == (version == "1.1")
    data = b""
    while not isinstance(event := reader.next_event(), h11.EndOfMessage):
        assert isinstance(event, h11.Data)
        data += event.data
    assert "".join(part.split('"')[0] for part in data.decode().split('"content":"')[1:]) == "Hello, wörld 🌍!"
    assert data.endswith(b"data: [DONE]\n\n")


async def test_a_plain_answer_follows_a_stream_on_the_same_connection() -> None:
    """What was framed for one request is not for the next: it has a length."""
    async with serving() as rig, await rig.connect() as stream:
        await stream.send_all(STREAM)
        await read_until(stream, b"\r\n0\r\n\r\n")
        await stream.send_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        plain = await read_to_end(stream)
    assert plain.startswith(b"HTTP/1.1 200")
    assert b"content-length" in plain
    assert b"chunked" not in plain
