"""The soak over all chat surfaces: calls demanded or not, in the background or not, most of it broken off or cancelled.

What each client does is drawn from a seed.
"""

import gc
import json
import random
import threading
from typing import Any

import trio

from .clients import PROTOCOLS, connect
from .stage import Stage, held_now, staged, until
from .states import CHAT, body
from .surfaces import SURFACES
from .test_soak import GROWTH_MAX, num_objects_now, read_in_part

NUM_REQUESTS = 800
NUM_CLIENTS = 16
STORE_BYTES = 64 * 1024
FUNCTION: dict[str, Any] = {"name": "look", "description": "Look.", "parameters": {"type": "object"}}
TOOLS: dict[str, Any] = {
    CHAT: {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"},
    "/v1/responses": {"tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"},
    "/v1/messages": {"tools": [{"name": "look", "input_schema": {"type": "object"}}], "tool_choice": {"type": "any"}},
}


def drawn(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A route and what is asked there."""
    asked = body(rng.choice("abcdefgh") * rng.randrange(1, 60), stream=rng.random() < 0.6, max_tokens=64)
    path = rng.choice([CHAT, *(surface.path for surface in SURFACES.values())])
    for surface in SURFACES.values():
        if surface.path == path:
            asked = surface.worded(asked)
    if rng.random() < 0.3:
        asked |= TOOLS[path]
    return path, asked


async def behind(stage: Stage, rng: random.Random, asked: dict[str, Any]) -> None:
    """A background response: cancelled, deleted, read or forgotten by its client."""
    client = await connect(rng.choice(list(PROTOCOLS)), stage.port)
    answer = await client.answer("/v1/responses", {**asked, "stream": False, "background": True})
    if client.status == 200:
        path = f"/v1/responses/{answer['id']}"
        match rng.randrange(3):
            case 0:
                told = await client.answer(f"{path}/cancel", {})
                assert client.status == 400 or told["status"] in ("cancelled", "completed")
            case 1:
                told = await client.answer(path)
                assert client.status == 404 or told["id"] == answer["id"]  # It may have been let go for others.
    else:
        assert client.status == 503
    await client.close()


async def one(stage: Stage, rng: random.Random, done: list[str]) -> None:
    """One request: in the background, answered in full, or broken off."""
    path, asked = drawn(rng)
    if path == "/v1/responses" and rng.random() < 0.4:
        await behind(stage, rng, asked)
        done.append("behind")
        return
    client = await connect(rng.choice(list(PROTOCOLS)), stage.port, stalled=rng.random() < 0.1)
    await client.ask(path, asked)
    if rng.random() < 0.2:
        await client.read()
        assert client.status in (200, 503)
        done.append("answered")
    else:
        for _ in range(rng.randrange(20)):
            await trio.lowlevel.checkpoint()
        await read_in_part(client, rng)
        if not client.ended:
            await client.leave(rng.choice(client.WAYS))
        done.append("broken off")
    await client.close()


async def soak(stage: Stage, num_requests: int, seed: int, done: list[str]) -> None:
    numbers = iter(range(num_requests))

    async def client() -> None:
        for number in numbers:
            await one(stage, random.Random(f"{seed} {number}"), done)

    async with trio.open_nursery() as nursery:
        for _ in range(NUM_CLIENTS):
            nursery.start_soon(client)


async def test_a_soak_over_all_surfaces_leaves_nothing_behind() -> None:
    """Tasks, descriptors, blocks, threads and objects are where they began, and the store is within its bound."""
    done: list[str] = []
    sizes = {
        "max_num_seqs": 6,
        "num_blocks": 384,
        "max_num_queued_reqs": 8,
        "max_model_len": 1024,
        "num_kept_requests": 32,
        "response_store_size": STORE_BYTES,
    }
    async with staged(**sizes, step_freely=True, check=False) as stage:  # type: ignore[arg-type]
        await soak(stage, NUM_REQUESTS // 4, -1, done)  # After it, everything that is made once has been made.
        await stage.wait_all_gone()
        responses = stage.run.responses
        assert responses is not None
        stage.device.plans.clear()  # the test's own
        gc.collect()
        held, num_threads, num_objects = held_now(), threading.active_count(), num_objects_now()
        num_stored = responses.num_stored
        await soak(stage, NUM_REQUESTS - NUM_REQUESTS // 4, 1, done)
        await stage.wait_all_gone()
        stage.device.plans.clear()  # the test's own
        gc.collect()
        await until(lambda: held_now().no_more_than(held))
        await until(lambda: threading.active_count() <= num_threads)  # an idle thread of trio's lives for ten seconds
        assert num_objects_now() <= num_objects + GROWTH_MAX + 4 * max(0, responses.num_stored - num_stored)
        assert 0 < responses.num_stored_bytes <= STORE_BYTES
        stage.simulation.parts.scheduler.check()
        assert len(done) == NUM_REQUESTS
        assert min(done.count(kind) for kind in ("behind", "answered", "broken off")) > 0.05 * NUM_REQUESTS
        client = await connect("http/1.1", stage.port)
        await client.ask("/v1/responses", {"input": "hello"})
        assert json.loads(await client.read())["output"][0]["content"][0]["text"] == "hello"
        await client.close()
        await until(stage.engine_is_empty)
