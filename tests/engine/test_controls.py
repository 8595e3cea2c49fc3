"""Settings that change at a step boundary: limits of steps and queue, pause, and the prefix cache."""

import pytest
import trio
import trio.testing

from triolet.engine.core.errors import InvalidRequest, Overloaded
from triolet.engine.core.params import SamplingParams
from triolet.engine.open import run_engine

from .simulated import simulate


async def test_a_smaller_budget_holds_from_the_next_step(autojump_clock: trio.testing.MockClock) -> None:
    """A prompt is cut into chunks of the new size; the settings show it."""
    simulation = simulate(max_num_batched_tokens=64, max_num_seqs=2)
    async with run_engine(simulation.parts, check=True) as engine:
        settings = await engine.controls.change(max_num_batched_tokens=4)
        async with engine.generate("hello hi\n", SamplingParams(max_tokens=1)) as stream:
            _ = [output async for output in stream]
        assert engine.controls.settings == settings
        assert settings.max_num_batched_tokens == 4
        assert [tokens for _, tokens in engine.stories()[0].chunks] == [4, 4, 1]


async def test_paused_nothing_is_computed_and_nobody_is_lost(autojump_clock: trio.testing.MockClock) -> None:
    """Requests come in and wait; deadlines pass; resumed, the others are answered."""
    simulation = simulate()
    async with run_engine(simulation.parts, check=True) as engine:
        assert (await engine.controls.pause(True)).paused
        async with engine.generate("hello\n") as stream:
            await trio.sleep(100)
            assert engine.stats().steps == 0
            assert not (await engine.controls.pause(False)).paused
            assert "".join([output.text async for output in stream]) == "hello"


async def test_the_queue_s_limit_is_lowered_and_raised_again(autojump_clock: trio.testing.MockClock) -> None:
    """Who comes past it is refused; nobody who waits is."""
    async with run_engine(simulate(max_num_seqs=1, max_num_queued_reqs=4).parts) as engine:
        await engine.controls.pause(True)
        await engine.controls.change(max_num_queued_reqs=1)
        async with engine.generate("one\n"):
            with pytest.raises(Overloaded, match=r"^The queue is full: 1 requests are waiting\.$"):
                await engine.generate("two\n").__aenter__()
            await engine.controls.change(max_num_queued_reqs=4, max_num_queued_tokens=5)
            with pytest.raises(Overloaded, match=r"^The queue is full: 4 prompt tokens are waiting\.$"):
                await engine.generate("a long prompt\n").__aenter__()


async def test_the_prefix_cache_is_reset_when_nobody_holds_blocks(autojump_clock: trio.testing.MockClock) -> None:
    """Refused while a request runs; then the same prompt is computed anew."""
    prompt = "x" * 40 + "\n"
    async with run_engine(simulate(num_blocks=64).parts) as engine:

        async def cached() -> int:
            async with engine.generate(prompt, SamplingParams(max_tokens=1)) as stream:
                return [output.num_cached_tokens async for output in stream][-1]

        assert await cached() == 0
        assert await cached() > 0
        async with engine.generate(prompt) as stream:
            await anext(stream)
            assert not await engine.controls.reset_prefix_cache()
        await trio.sleep(2)
        assert await engine.controls.reset_prefix_cache()
        assert await cached() == 0


async def test_a_change_whose_asker_leaves_comes_to_hold_as_a_whole(mock_clock: trio.testing.MockClock) -> None:
    """At the next step boundary: the limits of the step and those of the queue, or neither before."""
    parts = simulate(max_num_batched_tokens=64, max_num_seqs=2, max_num_queued_reqs=8).parts
    async with run_engine(parts) as engine, engine.generate("hello\n"), trio.open_nursery() as nursery:
        await trio.testing.wait_all_tasks_blocked()
        before = engine.controls.settings
        nursery.start_soon(lambda: engine.controls.change(max_num_batched_tokens=4, max_num_queued_reqs=1))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        assert engine.controls.settings == before
        with trio.CancelScope(shield=True):
            mock_clock.jump(1)
            await trio.testing.wait_all_tasks_blocked()
        settings = engine.controls.settings
        assert (settings.max_num_batched_tokens, settings.max_num_queued_reqs) == (4, 1)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_num_batched_tokens", 1, "max_num_batched_tokens must be from 2 to 64, not 1."),
        ("max_num_batched_tokens", 65, "max_num_batched_tokens must be from 2 to 64, not 65."),
        ("max_num_queued_reqs", 9, "max_num_queued_reqs must be from 1 to 8, not 9."),
        ("long_prefill_token_threshold", -1, "long_prefill_token_threshold must be at least 0, not -1."),
        ("max_num_queued_tokens", -1, "max_num_queued_tokens must be at least 0, not -1."),
    ],
)
async def test_what_memory_was_not_measured_for_is_refused(
    field: str, value: int, message: str, autojump_clock: trio.testing.MockClock
) -> None:
    """Naming the setting and its bounds; nothing has changed."""
    parts = simulate(max_num_batched_tokens=64, max_num_seqs=2, max_num_queued_reqs=8).parts
    async with run_engine(parts) as engine:
        before = engine.controls.settings
        with pytest.raises(InvalidRequest) as caught:
            await engine.controls.change(**{field: value})
        assert (caught.value.message, caught.value.param) == (message, field)
        assert engine.controls.settings == before


async def test_one_change_at_a_time(mock_clock: trio.testing.MockClock) -> None:
    """A second one is told to come back; the first holds when the step in flight has landed."""
    async with run_engine(simulate().parts) as engine, engine.generate("hello\n"), trio.open_nursery() as nursery:
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(engine.controls.pause, True)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Overloaded, match=r"^Another change of the settings is under way\.$"):
            await engine.controls.pause(False)
        assert not engine.controls.settings.paused
        mock_clock.jump(1)
        await trio.testing.wait_all_tasks_blocked()
        assert engine.controls.settings.paused
