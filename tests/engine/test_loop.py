"""The scheduler loop: once per step, aborts at step boundaries, asleep when there is nothing to do."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from triolet.engine.core.events import Finished, FinishReason, StepEvents
from triolet.engine.core.ids import RequestId, TokenId
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.plan import StepPlan
from triolet.engine.core.request import Request
from triolet.engine.inbox import Inbox
from triolet.engine.loop import SchedulerLoop
from triolet.engine.messages import Abort, SchedulerMessage, Submit

from .simulated import Simulation, simulate


@attrs.define
class Looping:
    """A running loop, its inbox, and what it has published."""

    simulation: Simulation
    inbox: Inbox[SchedulerMessage]
    published: list[StepEvents]

    def submit(self, name: str, prompt: str, *, max_tokens: int = 20, deadline: float | None = None) -> None:
        request = Request(
            id=RequestId(name),
            prompt_token_ids=tuple(map(TokenId, prompt.encode())),
            params=SamplingParams(max_tokens=max_tokens),
            seed=0,
            end_token_ids=(TokenId(0),),
            deadline=deadline,
        )
        self.inbox.put(Submit(request=request))

    @property
    def finished(self) -> list[Finished]:
        return [finished for events in self.published for finished in events.finished]


@asynccontextmanager
async def looping(depth: int = 1, **settings: int) -> AsyncIterator[Looping]:
    simulation = simulate(**settings)  # type: ignore[arg-type]
    here = Looping(simulation, Inbox(100), [])
    loop = SchedulerLoop(
        simulation.parts.scheduler, simulation.device, here.inbox, here.published.append, depth=depth, check=True
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.run)
        yield here
        nursery.cancel_scope.cancel()


async def test_a_step_is_published_as_one_message(autojump_clock: trio.testing.MockClock) -> None:
    """Whatever the number of requests, a step says what happened once."""
    async with looping() as here:
        for number in range(3):
            here.submit(str(number), f"hi {number}\n")
        await trio.sleep(20)
    admissions, first, *_ = here.published
    assert len(admissions.admitted) == 3
    assert first.requests == ("0", "1", "2")
    assert len(here.finished) == 3
    assert len(here.published) == len(here.simulation.device.plans) + 1


async def test_an_idle_loop_sleeps_until_a_message_comes(autojump_clock: trio.testing.MockClock) -> None:
    """Without work nothing is planned, published or awaited but the inbox; a submit starts it at once."""
    async with looping() as here:
        await trio.sleep(1000)
        assert here.simulation.device.plans == []
        here.submit("a", "hi\n")
        await wait_all_tasks_blocked()
        assert len(here.simulation.device.plans) == 1


async def test_an_abort_acts_at_the_step_boundary(autojump_clock: trio.testing.MockClock) -> None:
    """No later plan holds the sequence, and the end is said with the step in flight."""
    async with looping() as here:
        here.submit("a", "a long answer\n")
        await trio.sleep(2.5)
        here.inbox.put(Abort(request=RequestId("a")))
        await trio.sleep(10)
        assert len(here.simulation.device.plans) == 3
        assert here.simulation.all_blocks_are_back
    assert [(finished.reason, finished.last) for finished in here.finished] == [(FinishReason.ABORT, True)]


async def test_a_request_aborted_before_its_step_is_never_planned(autojump_clock: trio.testing.MockClock) -> None:
    """Submit and Abort in one drain: one end, no step."""
    async with looping() as here:
        here.submit("a", "hi\n")
        here.inbox.put(Abort(request=RequestId("a")))
        here.inbox.put(Abort(request=RequestId("never heard of")))
        await trio.sleep(10)
    assert here.simulation.device.plans == []
    assert [finished.request for finished in here.finished] == ["a"]


@pytest.mark.parametrize("depth", [1, 2])
async def test_at_most_so_many_steps_are_on_the_device(depth: int, autojump_clock: trio.testing.MockClock) -> None:
    """The next plan is sent before the result is there when the depth allows it, and not before otherwise."""
    async with looping(depth) as here:
        here.submit("a", "some answer\n")
        await wait_all_tasks_blocked()
        assert len(here.simulation.device.plans) == depth
        await trio.sleep(20)
        assert here.simulation.all_blocks_are_back
    assert [finished.reason for finished in here.finished] == [FinishReason.STOP]


async def test_a_request_that_waits_ends_at_its_deadline(autojump_clock: trio.testing.MockClock) -> None:
    """The loop ends it with reason timeout at the boundary after its deadline, running or not."""
    async with looping(max_num_seqs=1) as here:
        here.submit("running", "a somewhat long answer\n", deadline=5.5)
        here.submit("waiting", "hi\n", deadline=3.5)
        await trio.sleep(100)
    assert [(finished.request, finished.reason) for finished in here.finished] == [
        ("waiting", FinishReason.TIMEOUT),
        ("running", FinishReason.TIMEOUT),
    ]


@pytest.mark.parametrize(("depth", "expected"), [(1, [0, 1]), (2, [0, 0.5])])
async def test_a_submit_starts_at_once_where_the_device_has_room(
    depth: int, expected: list[float], autojump_clock: trio.testing.MockClock
) -> None:
    """At depth 2, though the step in flight is the last of what there was; at depth 1 with the next step."""
    async with looping(depth) as here:
        started = trio.current_time()
        sent: list[float] = []
        send = here.simulation.device.send

        def note(plan: StepPlan) -> None:
            sent.append(trio.current_time() - started)
            send(plan)

        here.simulation.device.send = note  # type: ignore[method-assign]
        here.submit("a", "one step\n", max_tokens=1)
        await trio.sleep(0.5)
        here.submit("b", "another\n", max_tokens=1)
        await trio.sleep(10)
        assert sent == pytest.approx(expected)
    assert [finished.request for finished in here.finished] == ["a", "b"]
