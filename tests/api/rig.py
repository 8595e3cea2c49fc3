"""Plumbing of the api's tests: a server with a fake engine over real sockets, all in the test's own trio run."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx
import trio
import trio.testing

from triolet.api.config import ServerConfig
from triolet.api.serve import Run, serve
from triolet.engine.config import EngineConfig

from .fake_engine import FakeEngine, opening


@attrs.define(kw_only=True)
class Rig:
    """A running server, its engine, and a client."""

    engine: FakeEngine
    run: Run
    client: httpx.AsyncClient
    nursery: trio.Nursery
    status: int | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)

    @property
    def url(self) -> str:
        return str(self.client.base_url).rstrip("/")

    async def connect(self) -> trio.SocketStream:
        """A bare connection, for what no well-behaved client does."""
        return await trio.open_tcp_stream("127.0.0.1", self.run.server.port)

    async def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.post(path, content=content, **more)

    async def wait_closed(self) -> None:
        """Until the server holds no connection and no request."""
        while self.run.server.num_connections:
            await trio.testing.wait_all_tasks_blocked(0.001)
        assert not self.run.lifecycle.open_requests
        assert not self.engine.open


@asynccontextmanager
async def serving(
    engine: FakeEngine | None = None, *, headers: Mapping[str, str] | None = None, **config: Any
) -> AsyncIterator[Rig]:
    """A server on a free port of 127.0.0.1; stopped at the end, at once."""
    engine = engine or FakeEngine()
    settings = ServerConfig(**{"port": 0, "shutdown_timeout": 0.0, **config})
    async with trio.open_nursery() as nursery:
        rig: Rig | None = None

        async def run_server(*, task_status: trio.TaskStatus[Run]) -> None:
            status = await serve(
                EngineConfig(),
                settings,
                open_engine=opening(engine),
                version="9.9",
                signals=False,
                task_status=task_status,
            )
            if rig is not None:
                rig.status = status
                rig.ended.set()

        run = await nursery.start(run_server)
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{run.server.port}", headers=headers, timeout=None, trust_env=False
        ) as client:
            rig = Rig(engine=engine, run=run, client=client, nursery=nursery)
            yield rig
        run.stop.set()


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error object of an answer, its shape checked."""
    body = response.json()
    if response.request.url.path.startswith("/v1/messages"):
        assert body.pop("type") == "error"
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    return dict(body["error"])


def events_of(text: str) -> list[Any]:
    """The events of a stream; the last must be [DONE]."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    assert blocks[-1] == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-1]]


def chat(**fields: Any) -> dict[str, Any]:
    """A chat's body."""
    return {"messages": [{"role": "user", "content": "Hi"}], **fields}


def raw_post(path: str, body: Mapping[str, Any], **headers: str) -> bytes:
    """A request as bytes."""
    content = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: test", f"content-length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


async def read_until(stream: trio.SocketStream, mark: bytes) -> bytes:
    """What comes up to and with `mark`."""
    data = b""
    while mark not in data:
        more = await stream.receive_some(65536)
        assert more, f"the connection ended before {mark!r}: {data!r}"
        data += more
    return data


async def read_to_end(stream: trio.SocketStream) -> bytes:
    """What comes until the server closes."""
    data = b""
    try:
        while more := await stream.receive_some(65536):
            data += more
    except trio.BrokenResourceError:
        pass
    return data
