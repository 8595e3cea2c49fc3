"""The soak: most requests are broken off, at random moments in every state, and the server ends as it began.

2,000 requests; TRIOLET_SOAK=20000 asks for more, in rounds of 2,000. What each client does is drawn from a seed.
"""

import gc
import os
import random
import threading

import pytest
import trio

from .clients import PROTOCOLS, Client, connect
from .stage import Stage, held_now, staged, until
from .states import CHAT, body, choices_of

NUM_ROUNDS = max(1, int(os.environ.get("TRIOLET_SOAK", "2000")) // 2000)
NUM_REQUESTS = 2000
"""Of a round."""
NUM_CLIENTS = 24
SHARE_BROKEN = 0.8
GROWTH_MAX = 200
"""Objects that may be there after all requests and were not after the first tenth: caches that fill up."""


async def read_in_part(client: Client, rng: random.Random) -> None:
    """Some of the answer, or all of it: broken off wherever that comes to be."""
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3, 5, 8, 13))):
        if client.ended:
            return
        await client._read()


async def one(stage: Stage, rng: random.Random, done: list[str]) -> None:
    """One request on a connection of its own: answered in full and as if alone, or broken off."""
    protocol = rng.choice(list(PROTOCOLS))
    text = rng.choice("abcdefgh") * rng.randrange(1, 60)
    n = rng.choice((1, 1, 1, 3))
    streamed = rng.random() < 0.6
    asked = body(text, stream=streamed, n=n, max_tokens=64, priority=rng.randrange(3))
    headers = {"x_supersede_key": f"key {rng.randrange(4)}"} if rng.random() < 0.2 else {}
    client = await connect(protocol, stage.port, stalled=rng.random() < 0.1)
    if rng.random() >= SHARE_BROKEN:
        await client.ask(CHAT, asked, **headers)
        answer = await client.read()
        if client.status == 200:
            for told in choices_of(answer, streamed=streamed):
                if told.finish_reason != "abort":
                    assert (told.text, told.finish_reason) == (text, "stop"), "as if it had been alone"
            done.append("answered")
        else:
            assert client.status == 503
            done.append("refused")
        await client.close()
        return
    if rng.random() < 0.1:
        await client.ask_in_part(CHAT, asked)
    else:
        await client.ask(CHAT, asked, **headers)
        for _ in range(rng.randrange(20)):
            await trio.lowlevel.checkpoint()
        await read_in_part(client, rng)
    way = rng.choice(client.WAYS)
    if not client.ended or way in ("close", "reset"):
        await client.leave(way)
    done.append("broken off")
    await client.close()


async def soak(stage: Stage, num_requests: int, seed: int, done: list[str]) -> None:
    """So many requests, by clients that come one after the other."""
    numbers = iter(range(num_requests))

    async def client() -> None:
        for number in numbers:
            await one(stage, random.Random(f"{seed} {number}"), done)

    async with trio.open_nursery() as nursery:
        for _ in range(NUM_CLIENTS):
            nursery.start_soon(client)


@pytest.mark.parametrize("seed", range(NUM_ROUNDS))
async def test_a_soak_leaves_nothing_behind(seed: int) -> None:
    """Tasks, descriptors, blocks, threads and objects are where they began; who was not broken off has its answer."""
    done: list[str] = []
    async with staged(max_num_seqs=6, num_blocks=96, max_num_queued_reqs=8, step_freely=True, check=False) as stage:
        # A tenth first: after it, everything that is made once has been made.
        await soak(stage, NUM_REQUESTS // 10, -seed, done)
        await stage.wait_all_gone()
        stage.device.plans.clear()  # the test's own
        gc.collect()
        held, num_threads, num_objects = held_now(), threading.active_count(), len(gc.get_objects())
        await soak(stage, NUM_REQUESTS - NUM_REQUESTS // 10, seed + 1, done)
        await stage.wait_all_gone()
        stage.device.plans.clear()  # the test's own
        gc.collect()
        assert held_now().no_more_than(held)
        assert threading.active_count() <= num_threads
        assert len(gc.get_objects()) <= num_objects + GROWTH_MAX
        stage.simulation.parts.scheduler.check()
        assert len(done) == NUM_REQUESTS
        assert done.count("broken off") > 0.7 * NUM_REQUESTS
        assert done.count("answered") > 0.01 * NUM_REQUESTS  # some 5 %: how many depends on how busy the machine is
        client = await connect("http/1.1", stage.port)
        await client.ask(CHAT, body("hello"))
        assert choices_of(await client.read(), streamed=False)[0].text == "hello"
        await client.close()
        await until(stage.engine_is_empty)
