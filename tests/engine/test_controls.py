"""Settings that change at a step boundary: limits of steps and queue, pause, and the prefix cache."""

import pytest
import trio
import trio.testing

from triolet.engine.core.errors import InvalidRequest, Overloaded
from triolet.engine.core.events import PreemptReason
from triolet.engine.core.params import SamplingParams
from triolet.engine.open import run_engine
from triolet.engine.options import RequestOptions

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


async def test_fewer_slots_hold_from_the_next_step_and_nobody_is_lost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Of four that run two wait again, the last that came; all say what they would have said."""
    simulation = simulate(max_num_seqs=4)
    said: dict[int, str] = {}
    async with run_engine(simulation.parts, check=True) as engine:

        async def ask(number: int) -> None:
            async with engine.generate("hello you\n", request_id=f"r{number}") as stream:
                said[number] = "".join([output.text async for output in stream])

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(ask, number)
                await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(2)
            assert engine.stats().running == 4
            assert (await engine.controls.change(max_num_seqs=2)).max_num_seqs == 2
            await trio.sleep(1)
            assert engine.stats().running == 2
        assert said == dict.fromkeys(range(4), "hello you")
        reasons = {story.name: [reason for _, reason in story.preemptions] for story in engine.stories()}
        assert reasons == {"r0": [], "r1": [], "r2": [PreemptReason.LIMIT], "r3": [PreemptReason.LIMIT]}
        assert engine.stats().preemptions == 2


async def test_who_waits_is_admitted_in_the_new_order(autojump_clock: trio.testing.MockClock) -> None:
    """Three wait for one slot: a change to priority turns their order around, one to fcfs turns it back."""
    async with run_engine(simulate(max_num_seqs=1).parts, check=True) as engine:

        async def admitted(policy: str) -> list[str]:
            await engine.controls.pause(True)
            async with trio.open_nursery() as nursery:
                for number in range(3):
                    options = RequestOptions(priority=-number)
                    nursery.start_soon(follow, f"{policy}-{number}", options)
                    await trio.testing.wait_all_tasks_blocked()
                assert (await engine.controls.change(scheduling_policy=policy)).scheduling_policy == policy
                await engine.controls.pause(False)
            told = [story for story in engine.stories() if story.name.startswith(policy)]
            return [story.name[-1] for story in sorted(told, key=lambda story: story.admitted_time or 0)]

        async def follow(name: str, options: RequestOptions) -> None:
            async with engine.generate("hi\n", request_id=name, options=options) as stream:
                _ = [output async for output in stream]

        assert await admitted("priority") == ["2", "1", "0"]
        assert await admitted("fcfs") == ["0", "1", "2"]
        assert await admitted("fair") == ["0", "1", "2"]


async def test_slots_for_an_open_request_s_answers_stay(autojump_clock: trio.testing.MockClock) -> None:
    """With a request of three answers there are three slots at least; later ones may ask for no more than there are."""
    async with run_engine(simulate(max_num_seqs=4).parts, check=True) as engine:
        async with engine.generate("hi\n", SamplingParams(n=3)) as stream:
            with pytest.raises(InvalidRequest) as caught:
                await engine.controls.change(max_num_seqs=2, max_num_queued_reqs=1)
            expected = "max_num_seqs must be at least 3 as long as a request with so many answers is open."
            assert (caught.value.message, caught.value.param) == (expected, "max_num_seqs")
            assert engine.controls.settings.max_num_queued_reqs == 16
            assert len({output.choice async for output in stream}) == 3
        await engine.controls.change(max_num_seqs=2)
        with pytest.raises(InvalidRequest, match=r"^n must be at most 2 on this server, not 3\.$"):
            await engine.generate("hi\n", SamplingParams(n=3)).__aenter__()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_num_seqs", 0, "max_num_seqs must be from 1 to 2, not 0."),
        ("max_num_seqs", 3, "max_num_seqs must be from 1 to 2, not 3."),
        ("scheduling_policy", "os:system", "scheduling_policy must be one of fcfs, priority, fair, not 'os:system'."),
        ("max_num_batched_tokens", 1, "max_num_batched_tokens must be from 2 to 64, not 1."),
        ("max_num_batched_tokens", 65, "max_num_batched_tokens must be from 2 to 64, not 65."),
        ("max_num_queued_reqs", 9, "max_num_queued_reqs must be from 1 to 8, not 9."),
        ("long_prefill_token_threshold", -1, "long_prefill_token_threshold must be at least 0, not -1."),
        ("max_num_queued_tokens", -1, "max_num_queued_tokens must be at least 0, not -1."),
    ],
)
async def test_what_memory_was_not_measured_for_is_refused(
    field: str, value: int | str, message: str, autojump_clock: trio.testing.MockClock
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
