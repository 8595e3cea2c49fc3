"""The faults that public engines have had, planted one by one: the laws must catch each.

A storm of arrivals, cancellations and steps passes on the code as it is. With a fault planted it must not: a test here
that fails says that the suite has gone blunt.
"""

import random
from collections.abc import Callable, Iterable

import pytest

from triolet.engine.core.events import FinishReason
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.policy import FcfsPolicy
from triolet.engine.core.request import Sequence, State
from triolet.engine.core.running import RunningSet
from triolet.engine.core.scheduler import Scheduler
from triolet.kvcache.errors import KVCacheError
from triolet.kvcache.ids import BlockId
from triolet.kvcache.manager import KVCacheManager
from triolet.kvcache.pool import BlockPool

from .world import Shape, World

Plant = Callable[[pytest.MonkeyPatch], None]


def storm(seed: int, *, depth: int) -> None:
    """300 rounds in a pool that is always short; everything is checked all the time, and at the end all must finish."""
    draw = random.Random(seed)
    world = World(
        Shape(num_blocks=14, block_size=4, max_num_seqs=4, max_num_batched_tokens=12, depth=depth, vocab_size=16)
    )
    for _ in range(300):
        if draw.random() < 0.4 and len(world.open) < 8:
            prompt = [draw.choice((1, 2)) for _ in range(draw.randint(1, 24))]
            world.submit(prompt, SamplingParams(n=draw.choice((1, 1, 2)), max_tokens=draw.randint(1, 24)))
        if world.open and draw.random() < 0.25:
            world.abort(draw.choice(world.open).request.id)
        if world.open:
            world.step()
        world.scheduler.check()
    world.finish(2000)


def leak_what_waits(patch: pytest.MonkeyPatch) -> None:
    """Blocks leaked after an abort before allocation: an aborted request stays in the queue and is admitted later."""
    remove = FcfsPolicy.remove

    def planted(self: FcfsPolicy, sequence: Sequence) -> None:
        if sequence.state is State.ENDED:
            sequence.state = State.WAITING
        else:
            remove(self, sequence)

    patch.setattr(FcfsPolicy, "remove", planted)


def leak_what_runs(patch: pytest.MonkeyPatch) -> None:
    """Blocks leaked after an abort during a forward pass: with a step in flight nothing is given back."""
    release = KVCacheManager.release
    patch.setattr(
        KVCacheManager, "release", lambda self, blocks: None if self._pool.in_flight else release(self, blocks)
    )


def free_what_is_shared(patch: pytest.MonkeyPatch) -> None:
    """A use after free: the first of two owners to leave frees the block."""
    release = BlockPool.release

    def planted(self: BlockPool, blocks: Iterable[BlockId]) -> list[BlockId]:
        blocks = list(blocks)
        for block in blocks:
            self.refcounts[block] = min(self.refcounts[block], 1)
        return release(self, blocks)

    patch.setattr(BlockPool, "release", planted)


def evict_what_was_hit(patch: pytest.MonkeyPatch) -> None:
    """A use after free under eviction pressure: a hit leaves the block in the eviction queue."""
    acquire = BlockPool.acquire

    def planted(self: BlockPool, blocks: Iterable[BlockId]) -> None:
        blocks = list(blocks)
        evictable = [block for block in blocks if self.is_evictable(block)]
        acquire(self, blocks)
        for block in evictable:
            self._cached[block] = None

    patch.setattr(BlockPool, "acquire", planted)


def skip_the_copy(patch: pytest.MonkeyPatch) -> None:
    """Two owners write one block: a fork does not copy before it writes."""
    patch.setattr(KVCacheManager, "take_copies", lambda self: [])


def stop_admitting(patch: pytest.MonkeyPatch) -> None:
    """A scheduler that stops admitting for good while nothing shows it: an abort does not give its slot back."""
    lost = {"slots": 0}
    abort = Scheduler.abort
    num_slots = RunningSet.num_slots.fget

    def planted(self: Scheduler, request_id, reason=FinishReason.ABORT, **rest) -> None:  # type: ignore[no-untyped-def]
        lost["slots"] += reason is FinishReason.ABORT
        abort(self, request_id, reason, **rest)

    patch.setattr(Scheduler, "abort", planted)
    patch.setattr(RunningSet, "num_slots", property(lambda self: num_slots(self) + lost["slots"]))  # type: ignore[misc]
    patch.setattr(Scheduler, "check", lambda self: self._cache.check())


def take_another_down(patch: pytest.MonkeyPatch) -> None:
    """A cancelled request takes another one down: whoever shares its batch ends with it."""
    abort = Scheduler.abort

    def planted(self: Scheduler, request_id, *args, **rest) -> None:  # type: ignore[no-untyped-def]
        abort(self, request_id, *args, **rest)
        if self._running.decoding:
            abort(self, self._running.decoding[0].request.id)

    patch.setattr(Scheduler, "abort", planted)


FAULTS: list[Plant] = [
    leak_what_waits,
    leak_what_runs,
    free_what_is_shared,
    evict_what_was_hit,
    skip_the_copy,
    stop_admitting,
    take_another_down,
]


@pytest.mark.parametrize("depth", [1, 2])
def test_the_storm_passes(depth: int) -> None:
    """Without a fault nothing is found, so what is found below is the fault."""
    for seed in range(4):
        storm(seed, depth=depth)


def storms() -> None:
    for seed in range(4):
        storm(seed, depth=1)
        storm(seed, depth=2)


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within four storms, at one depth or the other."""
    plant(monkeypatch)
    with pytest.raises((AssertionError, KVCacheError)):
        storms()
