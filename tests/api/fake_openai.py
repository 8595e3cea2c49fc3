"""A server of OpenAI's protocol for the tests of clients: what it answers is bytes that a test chooses."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
import trio.testing

MODELS = {"data": [{"id": "fake-model"}]}


def whole(status: int, body: Any) -> bytes:
    """A plain answer."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(content)) + content


def event(data: Any, line_end: bytes = b"\n") -> bytes:
    """An event of a stream."""
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + line_end * 2


DONE = event(b"[DONE]")


def text_events(
    num_tokens: int, *, usage: bool = True, num_prompt_tokens: int = 3, line_end: bytes = b"\n"
) -> list[bytes]:
    """The events of a completion: a word each, then the usage, then [DONE]."""
    choices = [{"index": 0, "text": " word", "finish_reason": None} for _ in range(num_tokens)]
    choices[-1]["finish_reason"] = "length"
    events = [event({"choices": [choice]}, line_end) for choice in choices]
    if usage:
        counts = {"prompt_tokens": num_prompt_tokens, "completion_tokens": num_tokens}
        events.append(event({"choices": [], "usage": counts}, line_end))
    return [*events, event(b"[DONE]", line_end)]


def chat_events(num_tokens: int) -> list[bytes]:
    """The events of a chat: the role, words, the end."""
    deltas: list[dict[str, str]] = [
        {"role": "assistant", "content": ""},
        *({"content": " word"} for _ in range(num_tokens)),
    ]
    events = [event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}) for delta in deltas]
    end = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    counts = {"prompt_tokens": 7, "completion_tokens": num_tokens}
    return [*events, end, event({"choices": [], "usage": counts}), DONE]


def streamed(events: list[bytes], *, chunked: bool = True) -> bytes:
    """A streamed answer: in chunks, or until the connection closes."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    if not chunked:
        return head + b"\r\n" + b"".join(events)
    chunks = b"".join(b"%X\r\n%b\r\n" % (len(data), data) for data in events)
    return head + b"Transfer-Encoding: Chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


@attrs.define(kw_only=True)
class Fake:
    """What the server has been asked."""

    url: str = ""
    bodies: list[dict[str, Any]] = attrs.field(factory=list)
    heads: list[bytes] = attrs.field(factory=list)
    open: int = 0
    most_open: int = 0

    @property
    def prompts(self) -> list[Any]:
        """Of all requests but those that looked at the server first (for two tokens)."""
        return [body.get("prompt", body.get("messages")) for body in self.bodies if body["max_tokens"] > 2]


def complete(body: dict[str, Any]) -> bytes:
    """As a well-behaved server does."""
    return streamed(chat_events(body["max_tokens"]) if "messages" in body else text_events(body["max_tokens"]))


Answer = Callable[[dict[str, Any]], bytes | list[bytes] | None]


@asynccontextmanager
async def fake_openai(
    answer: Answer = complete, *, models: bytes | None = None, hold: trio.Event | None = None
) -> AsyncIterator[Fake]:
    """A server on a free port: `answer(body)` is what it says, a list piece by piece whenever the client
    has read all before; None leaves the client waiting, as does `hold`."""
    fake = Fake()

    async def handle(stream: trio.SocketStream) -> None:
        async with stream:
            data = b""
            while b"\r\n\r\n" not in data:
                more = await stream.receive_some(65536)
                if not more:
                    return
                data += more
            head, _, content = data.partition(b"\r\n\r\n")
            length = int((*head.lower().split(b"content-length:"), b"0")[1].split(b"\r\n")[0])
            while len(content) < length:
                content += await stream.receive_some(65536)
            fake.heads.append(head)
            if head.startswith(b"GET "):
                await stream.send_all(whole(200, MODELS) if models is None else models)
                return
            body = json.loads(content)
            fake.bodies.append(body)
            fake.open += 1
            fake.most_open = max(fake.most_open, fake.open)
            if hold is not None and body["max_tokens"] > 2:
                await hold.wait()
            said = answer(body)
            try:
                if said is None:
                    await stream.receive_some(1)
                for piece in [said] if isinstance(said, bytes) else said or []:
                    await trio.testing.wait_all_tasks_blocked()
                    await stream.send_all(piece)
            except trio.BrokenResourceError:
                pass  # the client has left
            finally:
                fake.open -= 1

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        fake.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, handle, listeners)
        yield fake
        nursery.cancel_scope.cancel()
