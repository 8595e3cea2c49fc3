"""Leaving a request's scope, in each state: it is out at the next step boundary and has given everything back."""

import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from triolet.engine.core.events import FinishReason
from triolet.engine.core.params import SamplingParams
from triolet.engine.engine import Engine
from triolet.engine.open import run_engine
from triolet.engine.options import RequestOptions
from triolet.engine.prompt import ChatPrompt
from triolet.engine.tokenizer import LONG_PROMPT_CHARACTERS

from .simulated import ByteTokenizer, simulate

LONG = "a" * 40 + "\n"
"""A prompt of three steps: the budget is 16 tokens."""


@pytest.mark.parametrize(
    ("state", "after_s"), [("inbox", 0), ("prefill", 0.5), ("second chunk", 1.5), ("decode", 3.5), ("later", 6.5)]
)
async def test_a_cancelled_reader_frees_its_request(
    state: str, after_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    """In the inbox, in prefill, in decode: gone with the step in flight, every block back, no task left."""
    simulation = simulate(max_num_batched_tokens=16)
    async with run_engine(simulation.parts, check=True) as engine:
        await wait_all_tasks_blocked()
        num_tasks = trio.lowlevel.current_statistics().tasks_living
        with trio.move_on_after(after_s):
            async with engine.generate(LONG) as stream:
                async for _ in stream:
                    pass
        num_plans = len(simulation.device.plans)
        await wait_all_tasks_blocked()
        await trio.sleep(1)
        await wait_all_tasks_blocked()
        assert simulation.all_blocks_are_back
        assert len(simulation.device.plans) == num_plans
        assert (engine.stats().running, engine.stats().waiting) == (0, 0)
        assert trio.lowlevel.current_statistics().tasks_living == num_tasks


async def test_a_waiting_request_is_freed(autojump_clock: trio.testing.MockClock) -> None:
    """Cancelled while it waits behind another, it is never planned, and the other's answer is whole."""
    simulation = simulate(max_num_seqs=1)
    async with run_engine(simulation.parts, check=True) as engine:
        async with engine.generate("hello\n") as running:
            assert (await anext(running)).text == "h"
            with trio.move_on_after(1):
                async with engine.generate("never\n") as stream:
                    await anext(stream)
            assert "".join([output.text async for output in running]) == "ello"
        assert sum(len(plan.joined) for plan in simulation.device.plans) == 1
    assert simulation.all_blocks_are_back


async def test_a_request_in_the_tokenizer_is_freed() -> None:
    """Cancelled while a worker thread renders its long prompt, it is gone at once; the thread ends for nobody."""
    started, may_end = trio.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    class Slow(ByteTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            trio.from_thread.run_sync(started.set, trio_token=token)
            trio.from_thread.run(may_end.wait, trio_token=token)
            return []

    simulation = simulate(tokenizer=Slow())
    async with run_engine(simulation.parts, check=True) as engine:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def ask() -> None:
                async with engine.generate("a" * LONG_PROMPT_CHARACTERS):
                    raise AssertionError("it was never tokenized")

            await started.wait()
            assert engine.stats().waiting == 1
            nursery.cancel_scope.cancel()
        assert engine.stats().waiting == 0
        may_end.set()
    assert simulation.device.plans == []


async def test_leaving_between_the_last_token_and_its_reading(autojump_clock: trio.testing.MockClock) -> None:
    """A request that has ended, unread, has given its blocks back; leaving it says nothing more to anybody."""
    simulation = simulate()
    async with run_engine(simulation.parts, check=True) as engine:
        async with engine.generate("hi\n"):
            await trio.sleep(60)
            assert simulation.all_blocks_are_back
        await wait_all_tasks_blocked()
        assert engine.stats().waiting == 0


@pytest.mark.parametrize("way", ["break", "raise", "return"])
async def test_every_way_out_of_the_scope_aborts(way: str, autojump_clock: trio.testing.MockClock) -> None:
    """break, an exception and return free the request as a cancellation does."""
    simulation = simulate()

    async def read(engine: Engine) -> None:
        async with engine.generate("a rather long answer\n") as stream:
            async for _ in stream:
                if way == "raise":
                    raise ZeroDivisionError
                if way == "return":
                    return
                break

    async with run_engine(simulation.parts, check=True) as engine:
        try:
            await read(engine)
        except ZeroDivisionError:
            assert way == "raise"
        await trio.sleep(2)
        assert simulation.all_blocks_are_back
        assert len(simulation.device.plans) <= 2


async def test_leaving_needs_no_checkpoint(autojump_clock: trio.testing.MockClock) -> None:
    """A request is left without a checkpoint, in a cancelled task too: nothing can cut the clean-up short."""
    simulation = simulate()
    async with run_engine(simulation.parts) as engine:
        scope = engine.generate("hello\n")
        await scope.__aenter__()
        with trio.CancelScope() as cancelled:
            cancelled.cancel()
            with trio.testing.assert_no_checkpoints():
                await scope.__aexit__(None, None, None)
        await trio.sleep(1)
    assert simulation.all_blocks_are_back


async def test_an_abort_by_name_ends_the_stream_with_its_text(autojump_clock: trio.testing.MockClock) -> None:
    """Engine.abort ends a request for its reader: the text so far, then the finish reason abort."""
    async with run_engine(simulate().parts) as engine:
        async with engine.generate("hello\n", request_id="mine") as stream:
            outputs = [await anext(stream)]
            assert engine.abort("mine")
            assert not engine.abort("mine"), "it is told once"
            outputs += [output async for output in stream]
        assert outputs[-1].finish_reason == FinishReason.ABORT
        assert "hello".startswith("".join(output.text for output in outputs))
        assert not engine.abort("mine"), "it is not open any more"


async def test_a_deadline_ends_the_stream_with_its_text(autojump_clock: trio.testing.MockClock) -> None:
    """At its deadline a request ends with what there is and the finish reason timeout."""
    simulation = simulate()
    options = RequestOptions(deadline=trio.current_time() + 2.5)
    async with run_engine(simulation.parts) as engine, engine.generate("hello\n", options=options) as stream:
        outputs = [output async for output in stream]
        assert simulation.all_blocks_are_back
    assert ("".join(output.text for output in outputs), outputs[-1].finish_reason) == ("hel", FinishReason.TIMEOUT)


async def test_a_stream_cannot_be_read_outside_its_scope(autojump_clock: trio.testing.MockClock) -> None:
    """A read after the scope has been left raises, instead of waiting for ever."""
    async with run_engine(simulate().parts) as engine:
        async with engine.generate("hello\n") as stream:
            pass
        with pytest.raises(trio.ClosedResourceError):
            await anext(stream)


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_storm_of_cancellations_leaves_the_others_whole(
    depth: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Of 300 requests every second is cancelled at a moment of its own; the others' answers are complete."""
    simulation = simulate(num_blocks=24, max_num_queued_reqs=300)
    answers: dict[int, str] = {}

    async def ask(engine: Engine, number: int) -> None:
        with trio.move_on_after(number / 7 if number % 2 else 10_000):
            async with engine.generate(f"request number {number:03d}\n", SamplingParams(stop=["!"])) as stream:
                answers[number] = "".join([output.text async for output in stream])

    async with run_engine(simulation.parts, check=True, depth=depth) as engine:
        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(ask, engine, number)
        await trio.sleep(3)
        assert simulation.all_blocks_are_back
    for number in range(0, 300, 2):
        assert answers[number] == f"request number {number:03d}"


async def test_several_answers_are_freed_together(autojump_clock: trio.testing.MockClock) -> None:
    """Leaving the scope of a request with n = 4 frees all its sequences; a stop string ends one answer alone."""
    simulation = simulate()
    async with run_engine(simulation.parts, check=True) as engine:
        async with engine.generate("some longer answer\n", SamplingParams(n=4)) as stream:
            await anext(stream)
        await trio.sleep(2)
        assert simulation.all_blocks_are_back
        async with engine.generate("hello\n", SamplingParams(n=2, stop="ll")) as stream:
            ends = [output.stop_reason async for output in stream if output.finish_reason]
        assert ends == ["ll", "ll"]
        with trio.move_on_after(0.5):
            async with engine.generate(ChatPrompt(messages=[{"content": "x" * 20}]), SamplingParams(n=2)) as stream:
                await anext(stream)
        await trio.sleep(1)
    assert simulation.all_blocks_are_back


async def test_an_abort_before_the_prompt_is_computed_ends_every_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A request with n = 2 that is ended while it waits gives two ends."""
    params = SamplingParams(n=2)
    async with run_engine(simulate().parts) as engine, engine.generate("a\n", params, request_id="mine") as stream:
        assert engine.abort("mine")
        ends = [(output.choice, output.finish_reason) async for output in stream]
    assert ends == [(0, FinishReason.ABORT), (1, FinishReason.ABORT)]
