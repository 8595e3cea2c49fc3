"""What is measured: times from arrival, counts, and the numbers of the moment."""

import attrs
import trio
import trio.testing

from triolet.engine.core.events import FinishReason
from triolet.engine.core.params import SamplingParams
from triolet.engine.observer import NoObserver
from triolet.engine.open import run_engine
from triolet.engine.registry import RETRY_AFTER_S_MAX, Registry, Stage

from .simulated import simulate


@attrs.define
class Seen(NoObserver):
    """Notes everything."""

    first: list[float] = attrs.field(factory=list)
    between: list[tuple[float, int]] = attrs.field(factory=list)
    ends: list[tuple[FinishReason, dict[str, float]]] = attrs.field(factory=list)

    def first_token(self, seconds: float) -> None:
        self.first.append(seconds)

    def inter_token(self, seconds: float, count: int) -> None:
        self.between.append((seconds, count))

    def finished(self, reason: FinishReason, **numbers: float) -> None:  # type: ignore[override]
        self.ends.append((reason, numbers))


async def test_an_observer_sees_first_tokens_gaps_and_ends(autojump_clock: trio.testing.MockClock) -> None:
    """A prompt of one step and four tokens: the first after a step, three gaps of a step, one end with all counts."""
    seen = Seen()
    params = SamplingParams(max_tokens=4)
    async with run_engine(simulate().parts, observer=seen) as engine, engine.generate("hello\n", params) as stream:
        _ = [output async for output in stream]
    assert seen.first == [1.0]
    assert seen.between == [(1.0, 1)] * 3
    numbers = {
        "e2e_seconds": 4.0,
        "queue_seconds": 0.0,
        "num_prompt_tokens": 6,
        "num_cached_tokens": 0,
        "num_output_tokens": 4,
    }
    assert seen.ends == [(FinishReason.LENGTH, numbers)]


async def test_a_request_that_was_never_admitted_queued_to_its_end(autojump_clock: trio.testing.MockClock) -> None:
    """Its queue time is its whole time; a refused one is no end at all."""
    seen = Seen()
    parts = simulate(max_num_seqs=1).parts
    async with run_engine(parts, observer=seen) as engine, engine.generate("a long answer\n") as running:
        await anext(running)
        with trio.move_on_after(2.5):
            async with engine.generate("never\n") as waiting:
                await anext(waiting)
        await trio.sleep(1)
    (reason, numbers), *_ = seen.ends
    assert (reason, numbers["queue_seconds"], numbers["e2e_seconds"]) == (FinishReason.ABORT, 3.0, 3.0)


async def test_stats_tell_the_moment(mock_clock: trio.testing.MockClock) -> None:
    """Running, waiting and blocks while it runs; counters afterwards."""
    async with run_engine(simulate(max_num_seqs=1).parts) as engine:
        async with engine.generate("hello\n") as stream, engine.generate("wait\n"):
            await trio.testing.wait_all_tasks_blocked()
            stats = engine.stats()
            assert (stats.running, stats.waiting, stats.num_blocks, stats.num_free_blocks) == (1, 1, 64, 62)
            assert stats.kv_usage == 2 / 64
            mock_clock.autojump_threshold = 0
            _ = [output async for output in stream]
        stats = engine.stats()
    assert (stats.prompt_tokens, stats.prefix_queries, stats.generation_tokens) >= (6, 6, 6)
    assert stats.steps >= 6


def test_the_time_to_come_back_follows_the_rate() -> None:
    """A queue of 30 at three ends a second is served in ten seconds; never less than one, never more than a minute."""
    registry = Registry(max_queued=30, max_running=0)
    assert registry._retry_after_s(0.0) == 1
    for number in range(64):
        now = number / 3
        request = registry.enter(None, now)
        registry.move(request, Stage.ENDED, now)
    for _ in range(30):
        registry.enter(None, 21.0)
    assert registry._retry_after_s(21.0) == 10
    assert registry._retry_after_s(10_000.0) == RETRY_AFTER_S_MAX
