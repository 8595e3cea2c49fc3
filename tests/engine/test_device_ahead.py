"""A runner that starts steps and gives results later: the device thread keeps it fed, in order, also in failure."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from triolet.engine.core.plan import StepPlan, StepResult
from triolet.engine.device import DeviceFailed, RunnerAhead, ThreadDevice


class Ahead:
    """Steps land when they are let; those named raise when they are launched, or when they land."""

    def __init__(self, *, bad_launches: tuple[int, ...] = (), bad_landings: tuple[int, ...] = ()) -> None:
        self.bad_launches, self.bad_landings = bad_launches, bad_landings
        self.launched = [threading.Semaphore(0) for _ in range(20)]
        self.landed = [threading.Event() for _ in range(20)]
        self.under_way: list[int] = []
        self.most_under_way = 0
        self.lost = False

    @property
    def num_under_way(self) -> int:
        return len(self.under_way)

    def launch(self, plan: StepPlan) -> None:
        if plan.step in self.bad_launches:
            raise OSError("cannot be launched")
        self.under_way.append(plan.step)
        self.most_under_way = max(self.most_under_way, len(self.under_way))
        self.launched[plan.step].release()

    def ready(self) -> bool:
        if self.under_way[0] in self.bad_landings and self.lost:
            raise OSError("the device is lost")
        return self.landed[self.under_way[0]].is_set()

    def collect(self) -> StepResult:
        step = self.under_way[0]
        self.landed[step].wait()
        if step in self.bad_landings:
            raise OSError("does not land")
        self.under_way.pop(0)
        return StepResult(step=step)

    def execute(self, plan: StepPlan) -> StepResult:
        raise AssertionError("the device thread launches and collects")

    def reset(self) -> None:
        self.under_way.clear()


def plan(step: int) -> StepPlan:
    return StepPlan(step=step, num_tokens=0, num_sequences=0)


@asynccontextmanager
async def running(runner: Ahead) -> AsyncIterator[ThreadDevice]:
    assert isinstance(runner, RunnerAhead)
    async with trio.open_nursery() as nursery:
        device = ThreadDevice()
        nursery.start_soon(device.run)
        try:
            await device.start(lambda: (runner, None))
            yield device
        finally:
            for event in runner.landed:
                event.set()
            device.close()


async def test_a_step_is_launched_while_one_is_under_way() -> None:
    """The second is there before the first has landed; a third waits, as there is room for two."""
    runner = Ahead()
    async with running(runner) as device:
        for step in (1, 2, 3):
            device.send(plan(step))
        await trio.to_thread.run_sync(runner.launched[2].acquire)
        assert runner.under_way == [1, 2]
        for step in (1, 2, 3):
            runner.landed[step].set()
        assert [(await device.receive()).step for _ in range(3)] == [1, 2, 3]
    assert runner.most_under_way == 2


async def test_a_plan_that_comes_while_a_step_computes_is_launched_at_once() -> None:
    """It need not wait for the step to land."""
    runner = Ahead()
    async with running(runner) as device:
        device.send(plan(1))
        await trio.to_thread.run_sync(runner.launched[1].acquire)
        device.send(plan(2))
        await trio.to_thread.run_sync(runner.launched[2].acquire)
        runner.landed[1].set()
        assert (await device.receive()).step == 1


async def test_a_step_that_cannot_be_launched_fails_behind_those_before_it() -> None:
    """The first lands, then the failure is told; what was sent behind it is dropped until the reset."""
    runner = Ahead(bad_launches=(2,))
    async with running(runner) as device:
        runner.landed[1].set()
        for step in (1, 2, 3):
            device.send(plan(step))
        assert (await device.receive()).step == 1
        with pytest.raises(DeviceFailed, match=r"^a step on the device failed \(OSError\)$"):
            await device.receive()
        assert await device.restore()
        device.send(plan(9))
        runner.landed[9].set()
        assert (await device.receive()).step == 9


async def test_a_step_that_does_not_land_takes_the_next_with_it() -> None:
    """One failure for both, and after the reset the device takes plans again."""
    runner = Ahead(bad_landings=(1,))
    async with running(runner) as device:
        for step in (1, 2):
            device.send(plan(step))
        await trio.to_thread.run_sync(runner.launched[2].acquire)
        runner.landed[1].set()
        with pytest.raises(DeviceFailed):
            await device.receive()
        assert await device.restore()
        device.send(plan(9))
        runner.landed[9].set()
        assert (await device.receive()).step == 9


async def test_a_device_that_is_lost_while_it_is_asked_fails_its_step() -> None:
    """The error comes out of receive, not out of the thread, which goes on."""
    runner = Ahead(bad_landings=(1,))
    runner.lost = True
    runner.landed[1].set()
    async with running(runner) as device:
        device.send(plan(1))
        with pytest.raises(DeviceFailed):
            await device.receive()
        assert await device.restore()
