"""Somebody who changes the settings of a simulated engine all the time: slots, budget, queue, policy, cache, pause."""

import random

import trio

from triolet.engine.core.policy import POLICIES
from triolet.engine.engine import Engine

FEWEST_SLOTS = 2
"""A simulated request asks for two answers at most."""


async def change_settings(
    engine: Engine, draw: random.Random, *, max_num_seqs: int, max_num_batched_tokens: int, max_num_queued_reqs: int
) -> None:
    """Until cancelled. Nothing grows beyond what is given, which the engine was made with."""
    controls = engine.controls
    while True:
        await trio.sleep(draw.choice((0.0, 0.05, 1.0, 4.0)))
        match draw.randrange(5):
            case 0:
                slots = draw.randint(FEWEST_SLOTS, max_num_seqs)
                budget = draw.randint(slots, max_num_batched_tokens)
                settings = await controls.change(max_num_seqs=slots, max_num_batched_tokens=budget)
                assert (settings.max_num_seqs, settings.max_num_batched_tokens) == (slots, budget)
            case 1:
                await controls.change(scheduling_policy=draw.choice(sorted(POLICIES)))
            case 2:
                await controls.change(max_num_queued_reqs=draw.randint(1, max_num_queued_reqs))
            case 3:
                await controls.pause(True)
                await trio.sleep(draw.choice((0.0, 2.0)))
                await controls.pause(False)
            case 4:
                await controls.reset_prefix_cache()
