"""One sampler for all who watch: bounded in rate, cost and memory, and gone when they are."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import pytest
import trio
import trio.testing

from tests.engine.simulated import Simulation, simulate
from triolet.api.live.hub import INTERVAL_S, SHARE_MAX, WATCHERS_MAX, Hub, Watcher
from triolet.api.live.tap import Tap
from triolet.engine.core.errors import Overloaded
from triolet.engine.core.params import SamplingParams
from triolet.engine.engine import Engine
from triolet.engine.observer import NoObserver
from triolet.engine.open import run_engine

from .watching import Mirror, event_of, live_of


@attrs.frozen
class Rig:
    """An engine that can be watched."""

    simulation: Simulation
    engine: Engine
    tap: Tap
    hub: Hub
    nursery: trio.Nursery

    async def ask(self, text: str, **params: Any) -> None:
        async with self.engine.generate(text, SamplingParams(**params)) as stream:
            _ = [output async for output in stream]

    @property
    def is_quiet(self) -> bool:
        """Nothing is subscribed, tapped or watched."""
        listened = self.tap.is_listened_to or self.simulation.cache.events.wanted
        return not listened and not self.hub.num_watchers


@asynccontextmanager
async def rigged(simulation: Simulation | None = None, *, shows_text: bool = True, **how: Any) -> AsyncIterator[Rig]:
    simulation = simulation or simulate(step_s=0.03)
    tap = Tap(NoObserver())
    async with run_engine(simulation.parts, observer=tap) as engine, trio.open_nursery() as nursery:
        hub = live_of(engine, tap, shows_text=shows_text, **how)
        nursery.start_soon(hub.run)
        yield Rig(simulation, engine, tap, hub, nursery)
        nursery.cancel_scope.cancel()


async def take(watcher: Watcher, mirror: Mirror, count: int = 1) -> None:
    for _ in range(count):
        event = await watcher.next()
        assert event is not None
        mirror.take(event_of(event))


async def test_nobody_watching_costs_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """No sample, no subscription and no tap before the first watcher, nor after the last."""
    async with rigged() as rig:
        await rig.ask("hello\n")
        await trio.sleep(10)
        assert (rig.hub.num_samples, rig.is_quiet) == (0, True)
        with rig.hub.watch() as watcher:
            assert await watcher.next() is not None
            assert not rig.is_quiet
        await trio.testing.wait_all_tasks_blocked()
        assert rig.is_quiet
        samples = rig.hub.num_samples
        await rig.ask("hello\n")
        await trio.sleep(10)
        assert rig.hub.num_samples == samples
        with rig.hub.watch() as watcher:
            assert await watcher.next() is not None


async def test_differences_add_up_to_what_there_is(autojump_clock: trio.testing.MockClock) -> None:
    """A snapshot, then changes: at the end the copy is the engine, and every step and first token was told once."""
    async with rigged(simulate(step_s=0.03, max_num_batched_tokens=8)) as rig:
        mirror = Mirror()
        with rig.hub.watch() as watcher:
            await take(watcher, mirror)

            async def load() -> None:
                async with trio.open_nursery() as nursery:
                    for text in ("hello you\n", "hello you all\n", "something else\n", "hello\n"):
                        nursery.start_soon(rig.ask, text)
                        await trio.sleep(0.2)

            rig.nursery.start_soon(load)
            while not (mirror.known["figures"].generation_tokens and not mirror.requests):
                await take(watcher, mirror)
            with trio.move_on_after(3):
                await take(watcher, mirror, 99)
        stats, look = rig.engine.stats(), rig.engine.inside.look()
        figures = mirror.known["figures"]
        assert (figures.steps, figures.generation_tokens, figures.kv_usage) == (stats.steps, stats.generation_tokens, 0)
        assert figures.prompt_tokens == stats.prompt_tokens
        assert [step.step for step in mirror.steps] == list(range(1, stats.steps + 1))
        assert sum(step.prefill_tokens + step.decode_tokens for step in mirror.steps) == stats.scheduled_tokens
        assert mirror.cells == "".join(f"{cell:x}" for cell in look.cells)
        assert attrs.asdict(look.counts) == msgspec.structs.asdict(mirror.known["blocks"])
        assert len(mirror.first_tokens) == 4
        assert mirror.kinds == ["snapshot"] + ["change"] * (len(mirror.kinds) - 1)
        texts = {branch.text for branch in mirror.known["prefixes"].branches}
        assert "hell" in texts


async def test_ten_times_a_second_at_most(autojump_clock: trio.testing.MockClock) -> None:
    """However many steps there are; and while nothing changes nothing is sent."""
    async with rigged(simulate(step_s=0.001)) as rig:
        mirror = Mirror()
        with rig.hub.watch() as watcher:
            with trio.move_on_after(2):
                await take(watcher, mirror, 999)
            idle = len(mirror.kinds)
            assert idle <= 2
            begun = rig.hub.num_samples

            async def load() -> None:
                for _ in range(100):
                    await rig.ask("hello there\n")

            rig.nursery.start_soon(load)
            with trio.move_on_after(1):
                await take(watcher, mirror, 999)
            assert rig.hub.num_samples - begun <= 11
            assert 5 <= len(mirror.kinds) - idle <= 11
        gaps = [later - earlier for earlier, later in zip(mirror.times[1:], mirror.times[2:], strict=False)]
        assert min(gaps) >= INTERVAL_S - 1e-3


async def test_a_sample_that_takes_long_is_made_seldom(autojump_clock: trio.testing.MockClock) -> None:
    """One that costs 20 ms comes once a second: no more than a fiftieth of the time."""
    moments = iter(number * 0.02 for number in range(9999))
    async with rigged(cost_clock=lambda: next(moments)) as rig:
        with rig.hub.watch():
            await trio.sleep(10.5)
        assert rig.hub.num_samples == 1 + int(10.5 * SHARE_MAX / 0.02)


async def test_a_slow_watcher_holds_one_event_and_then_gets_a_snapshot(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Two that watch are told the same; one that does not read misses changes and loses nothing by it."""
    async with rigged() as rig:
        fast, slow = Mirror(), Mirror()
        with rig.hub.watch() as quick, rig.hub.watch() as lazy:
            await take(quick, fast)
            await take(lazy, slow)

            async def load() -> None:
                for _ in range(9):
                    await rig.ask("hello there\n")

            rig.nursery.start_soon(load)
            while not (fast.known["figures"].generation_tokens >= 9 * 11 and not fast.requests):
                await take(quick, fast)
            with trio.move_on_after(3):
                await take(quick, fast, 9)
            assert len(fast.kinds) > 5
            await take(lazy, slow)
        assert slow.kinds == ["snapshot", "snapshot"]
        assert (slow.cells, slow.known["figures"]) == (fast.cells, fast.known["figures"])


async def test_the_last_one_leaving_ends_it_and_the_next_begins_anew(autojump_clock: trio.testing.MockClock) -> None:
    """One of two leaves: the other is told on. Both leave and a third comes at once: it gets a snapshot."""
    async with rigged() as rig:
        with rig.hub.watch() as stays:
            with rig.hub.watch() as leaves:
                assert await leaves.next() is not None
            assert await stays.next() is not None
            await rig.ask("hello\n")
            assert await stays.next() is not None
        with rig.hub.watch() as third:
            event = await third.next()
            assert event is not None
            assert event_of(event).kind == "snapshot"


async def test_there_is_a_most_and_an_end(autojump_clock: trio.testing.MockClock) -> None:
    """One more than WATCHERS_MAX is told when to come back; a server that stops ends every stream."""
    async with rigged() as rig:
        with trio.CancelScope():
            scopes = [rig.hub.watch() for _ in range(WATCHERS_MAX)]
            watchers = [scope.__enter__() for scope in scopes]
            with pytest.raises(Overloaded, match="64 others watch already"), rig.hub.watch():
                pass
            rig.hub.close()
            assert [await watcher.next() for watcher in watchers] == [None] * WATCHERS_MAX
            for scope in scopes:
                scope.__exit__(None, None, None)
        with rig.hub.watch() as late:
            assert await late.next() is None


async def test_an_error_inside_ends_the_streams_alone(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged, the engine goes on, and who comes later is served."""
    async with rigged() as rig:
        with monkeypatch.context() as patch, rig.hub.watch() as watcher:
            patch.setattr(rig.engine.inside, "look", lambda: 1 / 0)
            assert await watcher.next() is None
        assert "the live view failed" in caplog.text
        await rig.ask("hello\n")
        await trio.testing.wait_all_tasks_blocked()
        assert rig.is_quiet
        with rig.hub.watch() as watcher:
            assert await watcher.next() is not None


async def test_texts_are_kept_from_whom_they_are_not_for(autojump_clock: trio.testing.MockClock) -> None:
    """Where keys are all alike the tree has hashes and lengths, and no text."""
    async with rigged(shows_text=False) as rig:
        await rig.ask("hello there\n")
        mirror = Mirror()
        with rig.hub.watch() as watcher:
            while "prefixes" not in mirror.known:
                await take(watcher, mirror)
        (branch,) = mirror.known["prefixes"].branches
        assert (branch.text, branch.depth, branch.salted) == (None, 0, False)
        assert branch.tokens >= 12


async def test_a_large_pool_stays_a_small_event(autojump_clock: trio.testing.MockClock) -> None:
    """100,000 blocks: a snapshot under 64 KiB, each cell a share of 25 blocks."""
    simulation = simulate(num_blocks=100_000)
    async with rigged(simulation) as rig:
        with rig.hub.watch() as watcher:
            event = await watcher.next()
        assert event is not None
        assert len(event) < 65536
        mirror = Mirror()
        mirror.take(event_of(event))
        assert mirror.known["limits"].blocks_per_cell == 25
        assert mirror.cells == "f0000" * 4000
