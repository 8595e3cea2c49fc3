"""Deadlines while tokenizing, time limits for the queue, supersede keys, and the queue's bound by prompt tokens."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from triolet.engine.core.errors import Overloaded
from triolet.engine.core.events import FinishReason
from triolet.engine.core.params import SamplingParams
from triolet.engine.engine import Engine
from triolet.engine.observer import NoObserver, RequestEnd
from triolet.engine.open import run_engine
from triolet.engine.options import RequestOptions
from triolet.engine.stream import SUPERSEDED, Output, RequestStream
from triolet.engine.tokenizer import LONG_PROMPT_CHARACTERS

from .simulated import ByteTokenizer, simulate

LONG = "a" * LONG_PROMPT_CHARACTERS
GREEDY = SamplingParams(temperature=0)


class HeldTokenizer(ByteTokenizer):
    """A long prompt is tokenized when `may_end` is set, in the worker thread."""

    def __init__(self) -> None:
        self.started, self.may_end = trio.Event(), trio.Event()
        self._token = trio.lowlevel.current_trio_token()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if len(text) >= LONG_PROMPT_CHARACTERS:
            trio.from_thread.run_sync(self.started.set, trio_token=self._token)
            trio.from_thread.run(self.may_end.wait, trio_token=self._token)
        return list(b"hi\n")


async def outputs_of(stream: RequestStream) -> list[Output]:
    return [output async for output in stream]


@asynccontextmanager
async def tokenizing(options: RequestOptions, n: int = 1) -> AsyncIterator[tuple[Engine, list[Output | Overloaded]]]:
    """An engine with one request that is being tokenized; what it got is there when the body has ended."""
    tokenizer = HeldTokenizer()
    simulation = simulate(tokenizer=tokenizer, step_s=0.0)
    got: list[Output | Overloaded] = []
    async with run_engine(simulation.parts, check=True) as engine:

        async def ask() -> None:
            params = SamplingParams(n=n)
            try:
                async with engine.generate(LONG, params, request_id="long", options=options) as stream:
                    got.extend(await outputs_of(stream))
            except Overloaded as error:
                got.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await tokenizer.started.wait()
            yield engine, got
        tokenizer.may_end.set()
        assert simulation.device.plans == []
        assert (engine.stats().waiting, engine.stats().queued_tokens) == (0, 0)


@pytest.mark.parametrize("n", [1, 2])
async def test_a_deadline_ends_a_request_that_is_being_tokenized(n: int, mock_clock: trio.testing.MockClock) -> None:
    """The client gets a stream with nothing in it but its end, `timeout`, at the deadline, not after the tokenizer."""
    async with tokenizing(RequestOptions(deadline=trio.current_time() + 5), n=n) as (_, got):
        mock_clock.jump(5)
    assert [(output.choice, output.finish_reason) for output in got if isinstance(output, Output)] == [
        (choice, FinishReason.TIMEOUT) for choice in range(n)
    ]


async def test_the_time_in_the_queue_counts_tokenizing(mock_clock: trio.testing.MockClock) -> None:
    """One that is over by then is refused, with a time to come back."""
    async with tokenizing(RequestOptions(max_queue_time_s=5)) as (_, got):
        mock_clock.jump(5)
    [error] = got
    assert isinstance(error, Overloaded)
    assert error.message.startswith("The request was not admitted within ")
    assert error.retry_after_s >= 1


async def test_a_request_that_is_being_tokenized_can_be_aborted_by_name() -> None:
    """Its reader gets the end at once; a second time there is nothing to abort."""
    async with tokenizing(RequestOptions()) as (engine, got):
        assert engine.abort("long")
        assert not engine.abort("long")
        await wait_all_tasks_blocked()
        assert [output.finish_reason for output in got if isinstance(output, Output)] == [FinishReason.ABORT]


async def test_a_newer_request_supersedes_one_that_is_being_tokenized() -> None:
    """Nobody waits for the tokenizer on behalf of a request that nobody wants any more."""
    async with tokenizing(RequestOptions(supersede_key="k")) as (engine, got):
        with pytest.raises(ZeroDivisionError):
            async with engine.generate([1], GREEDY, options=RequestOptions(supersede_key="k")):
                raise ZeroDivisionError
        await wait_all_tasks_blocked()
        [output] = got
        assert isinstance(output, Output)
        assert (output.finish_reason, output.stop_reason) == (FinishReason.ABORT, SUPERSEDED)


async def test_a_deadline_that_has_passed_on_arrival_ends_the_request(autojump_clock: trio.testing.MockClock) -> None:
    """Nothing is scheduled for it."""
    simulation = simulate()
    async with run_engine(simulation.parts, check=True) as engine:
        options = RequestOptions(deadline=trio.current_time())
        async with engine.generate("hello\n", options=options) as stream:
            assert [output.finish_reason for output in await outputs_of(stream)] == [FinishReason.TIMEOUT]
    assert simulation.device.plans == []


async def test_who_is_not_admitted_in_time_is_told_to_come_back(autojump_clock: trio.testing.MockClock) -> None:
    """Overloaded comes from the stream before any text, at its time; who was admitted has all the time it needs."""
    reasons: list[FinishReason] = []

    class Seen(NoObserver):
        def finished(self, end: RequestEnd) -> None:
            reasons.append(end.reason)

    simulation = simulate(max_num_seqs=1)
    async with run_engine(simulation.parts, check=True, observer=Seen()) as engine, trio.open_nursery() as nursery:

        @nursery.start_soon
        async def ask() -> None:
            options = RequestOptions(max_queue_time_s=1)
            async with engine.generate("a long answer\n", options=options) as stream:
                await stream.admitted()
                assert "".join(output.text for output in await outputs_of(stream)) == "a long answer"

        await wait_all_tasks_blocked()
        started = trio.current_time()
        for wait in ("admitted", "anext"):
            async with engine.generate("hi\n", options=RequestOptions(max_queue_time_s=2.5)) as stream:
                assert engine.stats().queued_tokens == 3
                with pytest.raises(Overloaded, match=r"^The request was not admitted within 3 s\.$") as caught:
                    await (stream.admitted() if wait == "admitted" else anext(stream))
                assert (caught.value.status, caught.value.retry_after_s) == (503, 1)
        assert trio.current_time() - started == 6  # at a step boundary, each
        assert engine.stats().queued_tokens == 0
    assert reasons == [FinishReason.TIMEOUT, FinishReason.TIMEOUT, FinishReason.STOP]


@pytest.mark.parametrize("state", ["waiting", "running"])
async def test_a_newer_request_of_the_same_key_supersedes(state: str, autojump_clock: trio.testing.MockClock) -> None:
    """The older one ends at the next step boundary with its text so far, `abort` and `superseded`; others stay."""
    simulation = simulate(max_num_seqs=1 if state == "waiting" else 4)
    ends: dict[str, tuple[str, FinishReason | None, int | str | None]] = {}

    async def ask(engine: Engine, prompt: str, key: str | None) -> None:
        async with engine.generate(prompt, GREEDY, options=RequestOptions(supersede_key=key)) as stream:
            outputs = await outputs_of(stream)
        text = "".join(output.text for output in outputs)
        ends[prompt.strip()] = (text, outputs[-1].finish_reason, outputs[-1].stop_reason)

    async with run_engine(simulation.parts, check=True) as engine, trio.open_nursery() as nursery:
        for prompt, key in (("first of all\n", None), ("older one\n", "k"), ("another key\n", "other")):
            nursery.start_soon(ask, engine, prompt, key)
            await wait_all_tasks_blocked()
        await trio.sleep(3.5)
        nursery.start_soon(ask, engine, "newer one\n", "k")
    assert ends == {
        "first of all": ("first of all", FinishReason.STOP, None),
        "older one": ("" if state == "waiting" else "old", FinishReason.ABORT, SUPERSEDED),
        "another key": ("another key", FinishReason.STOP, None),
        "newer one": ("newer one", FinishReason.STOP, None),
    }
    assert simulation.all_blocks_are_back


async def test_a_refused_request_supersedes_nobody(autojump_clock: trio.testing.MockClock) -> None:
    """What was accepted is not lost to what was not."""
    options = RequestOptions(supersede_key="k")
    parts = simulate(max_num_seqs=1, max_num_queued_reqs=1).parts
    async with run_engine(parts) as engine, engine.generate("older\n", GREEDY, options=options) as older:
        await wait_all_tasks_blocked()
        async with engine.generate("in the queue\n", GREEDY):
            with pytest.raises(Overloaded):
                await engine.generate("newer\n", GREEDY, options=options).__aenter__()
            assert "".join(output.text for output in await outputs_of(older)) == "older"


async def test_an_ended_request_is_not_superseded(autojump_clock: trio.testing.MockClock) -> None:
    """Its reader, who is still there, finds its own end."""
    options = RequestOptions(supersede_key="k")
    async with run_engine(simulate().parts) as engine, engine.generate("older\n", GREEDY, options=options) as older:
        await trio.sleep(20)
        async with engine.generate("newer\n", GREEDY, options=options) as newer:
            assert (await outputs_of(newer))[-1].finish_reason is FinishReason.STOP
        assert [output.finish_reason for output in await outputs_of(older)] == [FinishReason.STOP]


async def test_the_queue_is_bounded_by_prompt_tokens(autojump_clock: trio.testing.MockClock) -> None:
    """Estimated before they are tokenized, and counted after; a single one may have more than all."""
    simulation = simulate(max_num_seqs=1, max_num_queued_tokens=30)
    async with run_engine(simulation.parts, check=True) as engine:
        async with engine.generate("x" * 40 + "\n"):
            await wait_all_tasks_blocked()
            async with engine.generate("y" * 19 + "\n"):
                assert engine.stats().queued_tokens == 20
                with pytest.raises(Overloaded, match=r"^The queue is full: 20 prompt tokens are waiting\.$"):
                    await engine.generate(list(b"z" * 11)).__aenter__()
                with pytest.raises(Overloaded):
                    await engine.generate("z" * 44).__aenter__()
                async with engine.generate("z" * 9 + "\n"):
                    assert engine.stats().queued_tokens == 30
        await trio.sleep(10)
        assert engine.stats().queued_tokens == 0
    assert simulation.all_blocks_are_back
