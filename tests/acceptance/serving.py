"""The real server over real sockets, around the real engine; and clients that talk to it."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import attrs
import httpx
import trio
import trio.testing

from triolet.api.config import ServerConfig
from triolet.api.serve import Run, serve
from triolet.engine.config import EngineConfig
from triolet.engine.engine import Engine
from triolet.engine.open import open_engine

from .asking import Question

OpenEngine = Callable[..., AbstractAsyncContextManager[Engine]]


@attrs.frozen(kw_only=True)
class Served:
    """A server that runs, the engine in it, and a client of it."""

    run: Run
    engine: Engine
    client: httpx.AsyncClient

    @property
    def port(self) -> int:
        return self.run.server.port

    async def wait_idle(self) -> None:
        """Until the server holds no connection at all, and the engine no request."""
        while self.run.server.num_connections or self.engine.stats().running or self.engine.stats().waiting:
            await trio.testing.wait_all_tasks_blocked(0.001)


@asynccontextmanager
async def serving(config: EngineConfig, *, open_engine: OpenEngine = open_engine) -> AsyncIterator[Served]:
    """A server on a free port of 127.0.0.1, stopped at the end. It must not have died."""
    engines: list[Engine] = []
    statuses: list[int] = []

    @asynccontextmanager
    async def open_seen(config: EngineConfig, **how: Any) -> AsyncIterator[Engine]:
        async with open_engine(config, **how) as engine:
            engines.append(engine)
            yield engine

    async def run_server(*, task_status: trio.TaskStatus[Run]) -> None:
        settings = ServerConfig(port=0, shutdown_timeout=0.0)
        statuses.append(
            await serve(config, settings, open_engine=open_seen, version="test", signals=False, task_status=task_status)
        )

    async with trio.open_nursery() as nursery:
        run: Run = await nursery.start(run_server)
        url = f"http://127.0.0.1:{run.server.port}"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=url, timeout=None, trust_env=False, limits=limits) as client:
            yield Served(run=run, engine=engines[0], client=client)
        run.stop.set()
    assert statuses == [0]


def completion_body(question: Question, **fields: Any) -> dict[str, Any]:
    """A question as the body of POST /v1/completions."""
    params = question.params
    return {
        "prompt": question.prompt,
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "seed": params.seed,
        "ignore_eos": params.ignore_eos,
        **fields,
    }


async def stream_completion(served: Served, question: Question, **fields: Any) -> str:
    """The text of a streamed completion, put together from its events."""
    text, done = "", False
    body = completion_body(question, stream=True, **fields)
    async with served.client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
    assert done
    return text
