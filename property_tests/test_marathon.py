"""Many random operations: storms of arrivals, cancellations, faults and steps in random configurations, one after the
other.

Where Hypothesis looks for the small program that breaks a law, this goes far: seeded storms in pools that are always
short, all laws checked after every round and every text at its end, until so many operations of the allocator have been
made. The number depends on the profile: 10 million in `nightly`. It is printed at the end.
"""

import random
from typing import Any

from hypothesis import settings

from triolet.engine.core.params import SamplingParams
from triolet.kvcache.manager import KVCacheManager

from .world import Shape, World

NUM_OPERATIONS = {"nightly": 10_000_000, "ci": 300_000}
COUNTED = ("match", "admit", "reserve", "store", "fork", "release", "begin_step", "land", "take_copies")


class CountedManager(KVCacheManager):
    """The real manager; every operation that changes or reads blocks is counted."""

    num_operations = 0


def _counted(name: str) -> Any:
    original = getattr(KVCacheManager, name)

    def operation(self: CountedManager, *args: Any, **kwargs: Any) -> Any:
        CountedManager.num_operations += 1
        return original(self, *args, **kwargs)

    return operation


for _name in COUNTED:
    setattr(CountedManager, _name, _counted(_name))


def random_shape(draw: random.Random) -> Shape:
    """As in the swarm of test_scheduler.py."""
    max_num_seqs = draw.randint(1, 8)
    return Shape(
        block_size=draw.choice((1, 2, 3, 4, 8, 16, 32)),
        num_blocks=draw.randint(2, 40),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + draw.randint(0, 20),
        long_prefill_token_threshold=draw.choice((0, 0, 1, 3, 8)),
        prefill_tokens_beside_decodes=draw.choice((0, 0, 1, 4)),
        enable_prefix_caching=draw.random() < 0.8,
        depth=draw.choice((1, 1, 2, 3)),
        policy=draw.choice(("fcfs", "fcfs", "priority", "fair")),
        windows=draw.choice(((None,), (None,), (None, 5), (7,))),
        vocab_size=draw.choice((2, 3, 8, 64)),
    )


def submit(world: World, draw: random.Random) -> None:
    """A request of few different tokens that the pool is sure to hold."""
    room = world.shape.max_model_len
    prompt = [draw.choice((1, 2)) for _ in range(draw.randint(1, max(1, min(room - 1, 60))))]
    params = SamplingParams(
        n=draw.choice((1, 1, 1, 2)),
        use_beam_search=draw.random() < 0.05,
        max_tokens=draw.randint(1, max(1, min(room - len(prompt), 40))),
        ignore_eos=draw.random() < 0.5,
    )
    deadline = world.now + draw.randint(0, 40) if draw.random() < 0.1 else None
    world.submit(prompt, params, priority=draw.randint(0, 2), key=draw.choice("ab"), deadline=deadline)


def storm(seed: int) -> None:
    """200 rounds in one world, then no more arrivals: everything ends, and every block is back."""
    draw = random.Random(seed)
    world = World(random_shape(draw), cache_class=CountedManager)
    cancel_rate = draw.choice((0.0, 0.1, 0.5, 0.9))
    for _ in range(200):
        if draw.random() < 0.5 and len(world.open) < 12:
            submit(world, draw)
        if world.open and draw.random() < cancel_rate:
            world.abort(draw.choice(world.open).request.id)
        fault = draw.random()
        if fault < 0.005:
            world.lose_device()
        elif fault < 0.01:
            world.fail_step(requeue=draw.random() < 0.5)
        if world.open:
            world.step()
        world.scheduler.check()
    world.finish(100_000)


def test_the_laws_hold_over_many_random_operations() -> None:
    """K1 to K11 and S1 to S8, in one storm after another; a failure names its seed: `storm(seed)` replays it."""
    wanted = NUM_OPERATIONS.get(str(settings.get_current_profile_name()), 30_000)
    seed = CountedManager.num_operations = 0
    while CountedManager.num_operations < wanted:
        try:
            storm(seed)
        except Exception as error:
            raise AssertionError(f"storm({seed}) breaks a law") from error
        seed += 1
    print(f"{CountedManager.num_operations:,} operations of the allocator in {seed:,} storms")
