"""GET /v1/live and the blocks behind it, over real sockets, around the real engine."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from tests.api.rig import error_of, read_to_end, read_until
from tests.contract.stage import Stage, staged, until
from triolet.api.live.hub import WATCHERS_MAX
from triolet.api.log import Throughput

from .watching import Mirror, event_of

KEY, ADMIN = "a-key", "an-admin-key"

METRICS = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_usage": "vllm:kv_cache_usage_perc",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "cached_prompt_tokens": "vllm:prompt_tokens_cached_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "prefix_queries": "vllm:prefix_cache_queries_total",
    "prefix_hits": "vllm:prefix_cache_hits_total",
    "preemptions": "vllm:num_preemptions_total",
    "free_blocks": "triolet:kv_blocks_free",
    "steps": "triolet:steps_total",
    "wasted_tokens": "triolet:wasted_tokens_total",
    "queued_tokens": "triolet:queued_tokens",
}
"""Figures of the page, and what /metrics calls them."""


@asynccontextmanager
async def client_of(stage: Stage, key: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    url = f"http://127.0.0.1:{stage.port}"
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=None, trust_env=False, limits=limits) as client:
        yield client


@asynccontextmanager
async def watching(stage: Stage) -> AsyncIterator["Watching"]:
    async with await trio.open_tcp_stream("127.0.0.1", stage.port) as stream:
        await stream.send_all(b"GET /v1/live HTTP/1.1\r\nhost: x\r\n\r\n")
        head = await read_until(stream, b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n" in head
        yield Watching(stream, head)


class Watching:
    """A client's stream, and what it knows by it. An event is a chunk: what frames chunks stands between events."""

    def __init__(self, stream: trio.SocketStream, data: bytes) -> None:
        self.mirror = Mirror()
        self.stream = stream
        self._data = data

    async def until_it_knows(self, figure: str, value: float) -> None:
        """Take events until that figure has come to that."""
        while "figures" not in self.mirror.known or getattr(self.mirror.known["figures"], figure) != value:
            while not (found := re.search(rb"data: .*\n\n", self._data)):
                more = await self.stream.receive_some(65536)
                assert more, "the stream has ended"
                self._data += more
            self.mirror.take(event_of(found[0]))
            self._data = self._data[found.end() :]


def post(stage: Stage, name: str, prompt: str, **fields: Any) -> bytes:
    body = json.dumps({"prompt": prompt, "stream": True, **fields}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-request-id: {name}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def test_the_live_view_the_metrics_the_log_and_the_stories_agree_under_load() -> None:
    """Six requests for four places in a short memory, held at a step: figures that two of them show are equal."""
    async with staged(num_blocks=40, max_num_batched_tokens=24) as stage, client_of(stage) as client:
        throughput = Throughput(stage.engine.stats(), 0.0)
        streams = []
        async with watching(stage) as live:
            for number in range(6):
                stream = await trio.open_tcp_stream("127.0.0.1", stage.port)
                streams.append(stream)
                await stream.send_all(post(stage, f"r{number}", f"hello to all of you {number % 2}\n", max_tokens=99))
                await until(lambda number=number: stage.num_open == number + 1)
            await stage.step(9)
            stats = stage.engine.stats()
            await live.until_it_knows("steps", stats.steps)
            page = (await client.get("/metrics")).text
            listed = (await client.get("/v1/requests")).json()["data"]
            line = throughput.line(stats, 2.0)
            blocks = [(await client.get(f"/v1/live/blocks/{first}?count=20")).json()["data"] for first in (0, 20)]
        for stream in streams:
            await stream.aclose()
        stage.device.step(float("inf"))
        await stage.wait_all_gone()
    mirror, figures = live.mirror, live.mirror.known["figures"]
    found = {sample.name: sample.value for family in text_string_to_metric_families(page) for sample in family.samples}
    for figure, metric in METRICS.items():
        assert getattr(figures, figure) == found[metric], figure
    assert figures.generation_tokens > 0 < figures.cached_prompt_tokens
    assert figures.waiting > 0
    computed = figures.prompt_tokens - figures.cached_prompt_tokens
    assert line == (
        f"Avg prompt throughput: {computed / 2:.1f} tokens/s, "
        f"Avg generation throughput: {figures.generation_tokens / 2:.1f} tokens/s, "
        f"Running: {figures.running} reqs, Waiting: {figures.waiting} reqs, Preemptions: {figures.preemptions}, "
        f"CPU KV cache usage: {figures.kv_usage:.1%}, "
        f"Prefix cache hit rate: {figures.prefix_hits / figures.prefix_queries:.1%}"
    )
    told = {request.name: request for request in mirror.requests.values()}
    assert told.keys() == {story["id"] for story in listed}
    for story in listed:
        request = told[story["id"]]
        assert (request.prompt_tokens, request.cached_tokens) == (story["prompt_tokens"], story["cached_tokens"])
        assert (request.output_tokens, request.state) == (story["output_tokens"], story["state"])
        assert (request.preemptions, request.max_tokens) == (story["preemptions"], story["max_tokens"])
    pool, limits = mirror.known["blocks"], mirror.known["limits"]
    assert (pool.owned + pool.shared + pool.limbo) / limits.num_blocks == found["vllm:kv_cache_usage_perc"]
    assert pool.free + pool.cached == found["triolet:kv_blocks_free"]
    every = [block for part in blocks for block in part]
    states = ["free", "cached", "limbo", "shared"]
    for block, cell in zip(every, mirror.cells, strict=True):
        assert block["state"] == (states[int(cell, 16)] if int(cell, 16) < 4 else "owned")
        assert set(block["owners"]) <= told.keys()
    owned = {request.colour: request.name for request in told.values() if request.colour is not None}
    assert {block["owners"][0] for block in every if block["state"] == "owned"} <= set(owned.values())
    in_flight = stage.device.plans[stats.steps - 1]
    assert mirror.steps[-1].step == found["triolet:steps_total"] - 1
    landed = sum(step.prefill_tokens + step.decode_tokens for step in mirror.steps)
    assert landed + in_flight.num_tokens == found["triolet:scheduled_tokens_total"]


async def test_one_that_leaves_gives_everything_back() -> None:
    """Three watch and go, in mid-stream: no task, no descriptor, no subscription is left, and nothing is sampled."""
    async with staged(step_freely=True) as stage:
        hub = stage.run.hub
        assert hub is not None
        await until(lambda: True)
        streams = [await trio.open_tcp_stream("127.0.0.1", stage.port) for _ in range(3)]
        for stream in streams:
            await stream.send_all(b"GET /v1/live HTTP/1.1\r\nhost: x\r\n\r\n")
            await read_until(stream, b"data: ")
        assert hub.num_watchers == 3
        for number, stream in enumerate(streams, start=1):
            await stream.aclose()
            await until(lambda number=number: hub.num_watchers == 3 - number)
        await stage.wait_all_gone()
        samples = hub.num_samples
        assert not stage.simulation.cache.events.wanted
        async with client_of(stage) as client:
            await client.post("/v1/completions", json={"prompt": "hello\n"})
        assert hub.num_samples == samples


async def test_a_stream_ends_when_the_server_stops() -> None:
    """A watcher does not hold the shutdown up."""
    async with staged() as stage, watching(stage) as live:
        await live.until_it_knows("running", 0)
        stage.run.stop.set()
        await read_to_end(live.stream)
        await stage.ended.wait()
    assert stage.status == [0]


async def test_what_may_be_asked() -> None:
    """So many events; GET alone; a number of blocks that there are."""
    async with staged() as stage, client_of(stage) as client:
        response = await client.get("/v1/live?events=1")
        assert event_of(response.content).kind == "snapshot"
        for events in ("0", "x", "-1", "1000001", "%31%00", "9" * 5000):
            error = error_of(refused := await client.get(f"/v1/live?events={events}"))
            assert (refused.status_code, error["param"]) == (400, "events")
        response = await client.post("/v1/live")
        assert (response.status_code, response.headers["allow"]) == (405, "GET")
        (block,) = (await client.get("/v1/live/blocks/7")).json()["data"]
        assert block == {
            "block": 7,
            "state": "free",
            "refcount": 0,
            "pinned": False,
            "hash": None,
            "owners": [],
            "tokens": 0,
            "token_ids": [],
            "text": "",
        }
        assert len((await client.get("/v1/live/blocks/0?count=9999")).json()["data"]) == 64
        for count in ("0", "x", "99999999"):
            response = await client.get(f"/v1/live/blocks/0?count={count}")
            assert (response.status_code, error_of(response)["param"]) == (400, "count")
        response = await client.get("/v1/live/blocks/256")
        assert response.status_code == 404
        assert error_of(response)["message"] == "There is no block 256: the pool has 256."


async def test_one_watcher_too_many_is_told_when_to_come_back() -> None:
    """503 with Retry-After."""
    async with staged() as stage, client_of(stage) as client:
        hub = stage.run.hub
        assert hub is not None
        scopes = [hub.watch() for _ in range(WATCHERS_MAX)]
        for scope in scopes:
            scope.__enter__()
        response = await client.get("/v1/live")
        assert (response.status_code, response.headers["retry-after"]) == (503, "10")
        for scope in scopes:
            scope.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("keys", "statuses", "shows"),
    [
        ({"api_key": (KEY,), "admin_api_key": (ADMIN,)}, {None: 401, KEY: 403, ADMIN: 200}, True),
        ({"admin_api_key": (ADMIN,)}, {None: 401, KEY: 401, ADMIN: 200}, True),
        ({"api_key": (KEY,)}, {None: 401, KEY: 200}, False),
        ({}, {None: 200}, True),
    ],
)
async def test_who_may_watch_and_who_may_read(
    keys: dict[str, tuple[str, ...]], statuses: dict[str | None, int], shows: bool
) -> None:
    """An admin where there is one, else anybody with a key; prompts show to an admin, or where there are no keys."""
    async with staged(step_freely=True, **keys) as stage:
        for key, status in statuses.items():
            async with client_of(stage, key) as client:
                for path in ("/v1/live?events=1", "/v1/live/blocks/0"):
                    assert (await client.get(path)).status_code == status
        async with client_of(stage, next(key for key, status in statuses.items() if status == 200)) as client:
            await client.post("/v1/completions", json={"prompt": "a secret prompt\n", "max_tokens": 1})
            (block,) = (await client.get("/v1/live/blocks/0")).json()["data"]
            events = (await client.get("/v1/live?events=1")).text
    assert block["tokens"] == 4
    assert (block["text"], block["token_ids"]) == (("a se", list(b"a se")) if shows else (None, None))
    assert ("a se" in events) is shows
