"""The soak: most requests are broken off, at random moments in every state, and the server ends as it began.

Texts, grammars, tool calls and beams, one answer or three, streamed or plain.
2,000 requests; TRIOLET_SOAK=20000 asks for more, in rounds of 2,000. What each client does is drawn from a seed.
"""

import gc
import json
import os
import random
import threading
from typing import Any

import pytest
import trio

from .clients import PROTOCOLS, Client, connect
from .stage import Stage, held_now, staged, until
from .states import CHAT, TOOLS, body, choices_of

NUM_ROUNDS = max(1, int(os.environ.get("TRIOLET_SOAK", "2000")) // 2000)
NUM_REQUESTS = 2000
"""Of a round."""
NUM_CLIENTS = 24
SHARE_BROKEN = 0.8
GROWTH_MAX = 200
"""Objects that may be there after all requests and were not after the first tenth: caches that fill up."""


def num_objects_now() -> int:
    """Live objects, without what trio keeps of up to a thousand deadlines that never came: their scopes, the reasons of
    those, and the entries of its heap, which are tuples."""
    gc.collect()
    return sum(type(thing).__name__ not in ("CancelScope", "CancelReason", "tuple") for thing in gc.get_objects())


async def read_in_part(client: Client, rng: random.Random) -> None:
    """Some of the answer, or all of it: broken off wherever that comes to be."""
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3, 5, 8, 13))):
        if client.ended:
            return
        await client._read()


def drawn(rng: random.Random) -> tuple[dict[str, Any], tuple[Any, ...] | None]:
    """A request, and what each of its answers says: text, calls and how it ends; None: no telling (beams)."""
    kind = rng.choice(("text", "text", "grammar", "tools", "tools", "beams"))
    text = rng.choice("abcdefgh") * rng.randrange(1, 60)
    fields: dict[str, Any] = {
        "stream": rng.random() < 0.6 and kind != "beams",
        "n": rng.choice((1, 1, 1, 3)),
        "max_tokens": 64,
        "priority": rng.randrange(3),
    }
    said: tuple[Any, ...] | None = (text, (), "stop")
    if kind == "grammar":
        fields["structured_outputs"] = {"regex": rng.choice(("[a-h]*", "a*|b*|[c-h]*"))}
    elif kind == "beams":
        fields |= {"use_beam_search": True, "n": 3}
        said = None
    elif kind == "tools":
        arguments = json.dumps({"x": text[:16]})
        text = f'{rng.choice(("", "So: "))}<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
        choice = rng.choice(("auto", "required", {"type": "function", "function": {"name": "f"}}))
        fields |= {"max_tokens": 128, "tools": TOOLS, "tool_choice": choice}
        content = "So:" if text.startswith("S") else ""
        said = (content, (("f", arguments),), "tool_calls" if isinstance(choice, str) else "stop")
    return body(text, **fields), said


async def one(stage: Stage, rng: random.Random, done: list[str]) -> None:
    """One request on a connection of its own: answered in full and as if alone, or broken off."""
    protocol = rng.choice(list(PROTOCOLS))
    asked, said = drawn(rng)
    headers = {"x_supersede_key": f"key {rng.randrange(4)}"} if rng.random() < 0.2 else {}
    client = await connect(protocol, stage.port, stalled=rng.random() < 0.1)
    if rng.random() >= SHARE_BROKEN:
        await client.ask(CHAT, asked, **headers)
        answer = await client.read()
        if client.status == 200:
            for told in choices_of(answer, streamed=asked["stream"]):
                if told.finish_reason != "abort" and said is not None:
                    assert (told.text, told.calls, told.finish_reason) == said, "as if it had been alone"
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
    limits = {"max_num_seqs": 6, "num_blocks": 96, "max_num_queued_reqs": 8, "num_kept_requests": 8}
    async with staged(**limits, step_freely=True, check=False) as stage:
        # A tenth first: after it, everything that is made once has been made.
        await soak(stage, NUM_REQUESTS // 10, -seed, done)
        await stage.wait_all_gone()
        stage.device.plans.clear()  # the test's own
        held, num_threads, num_objects = held_now(), threading.active_count(), num_objects_now()
        await soak(stage, NUM_REQUESTS - NUM_REQUESTS // 10, seed + 1, done)
        await stage.wait_all_gone()
        stage.device.plans.clear()  # the test's own
        await until(lambda: held_now().no_more_than(held))
        await until(lambda: threading.active_count() <= num_threads)  # an idle thread of trio's lives for ten seconds
        assert num_objects_now() <= num_objects + GROWTH_MAX
        stage.simulation.parts.scheduler.check()
        assert len(done) == NUM_REQUESTS
        assert done.count("broken off") > 0.7 * NUM_REQUESTS
        assert done.count("answered") > 0.01 * NUM_REQUESTS  # some 5 %: how many depends on how busy the machine is
        client = await connect("http/1.1", stage.port)
        await client.ask(CHAT, body("hello"))
        assert choices_of(await client.read(), streamed=False)[0].text == "hello"
        await client.close()
        await until(stage.engine_is_empty)
