"""The scheduler loop: once per step, drain the inbox, plan, send, publish, await the result, commit.

Imports trio. It alone touches the scheduler. It never awaits a client or a tokenizer: the device and, when there is
nothing to do, its own inbox are all it waits for. Aborts therefore act at step boundaries. What came of a step
is published when the next one is on its way, into the detokenizer's inbox: the device waits for neither.

When a step fails, hangs, or takes the device with it, the loop goes on with everything but planning until the device is
back (`recovery.py`): messages are taken in, deadlines pass, ends are said.
"""

import logging
import math
from collections import deque
from collections.abc import Callable
from typing import assert_never

import trio

from .core.events import StepEvents
from .core.plan import StepPlan, StepResult
from .core.scheduler import Scheduler
from .device import Device, DeviceFailed
from .inbox import Inbox
from .messages import Abort, AtBoundary, SchedulerMessage, Submit
from .observer import NoObserver, Observer
from .race import race
from .recovery import Recovery
from .timing import StepTimes

log = logging.getLogger(__name__)

RESTORE_FACTOR = 10
"""A device may be away for so many step timeouts before that counts as hanging: a model is loaded meanwhile."""


class SchedulerLoop:
    """One scheduler and one device. `depth` is how many steps may be on the device at a time; one that takes longer
    than `step_timeout_s` hangs."""

    def __init__(
        self,
        scheduler: Scheduler,
        device: Device,
        inbox: Inbox[SchedulerMessage],
        publish: Callable[[StepEvents], None],
        *,
        depth: int = 1,
        check: bool = False,
        step_timeout_s: float = math.inf,
        max_losses_in_a_row: int = 3,
        observer: Observer | None = None,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self._scheduler = scheduler
        self._device = device
        self._inbox = inbox
        self._publish = publish
        self._depth = depth
        self._check = check
        self._paused = False
        self._clock = clock
        self._in_flight: deque[StepPlan] = deque()
        self._times = StepTimes(observer or NoObserver())
        self._got_on_at = -math.inf
        """When the device was given a first step, or landed one: the oldest in flight cannot have begun earlier."""
        self._step_timeout_s = step_timeout_s
        self._recovery = Recovery(scheduler, device, max_losses_in_a_row=max_losses_in_a_row)
        self.stuck: str | None = None
        """Why nothing gets on though nobody has died, fit for /health; None while things get on."""

    @property
    def num_restarts(self) -> int:
        """Counter: devices that took the place of a lost one."""
        return self._recovery.num_restarts

    def pause(self, paused: bool) -> None:
        """Plan nothing from now on, or go on. To be called at a step boundary (`AtBoundary`)."""
        self._paused = paused

    async def run(self) -> None:
        """Until cancelled. Raises DeviceFailed when nothing helps the device, AssertionError for a broken law."""
        while True:
            self._drain()
            self._fill()
            self._say()
            try:
                await (self._land() if self._in_flight else race(self._rest, self._device.watch))
            except DeviceFailed as failure:
                await self._recover(failure)

    def _drain(self) -> None:
        """Take in what has come since the last step boundary, in its order."""
        for message in self._inbox.drain():
            match message:
                case Submit():
                    self._scheduler.submit(message.request)
                case Abort():
                    self._scheduler.abort(
                        message.request, message.reason, choice=message.choice, message=message.message
                    )
                case AtBoundary():
                    message.call()
                case _:
                    assert_never(message)

    def _fill(self) -> None:
        """Send plans until the device has its fill or nothing more can run."""
        if self._paused:
            self._scheduler.expire(self._clock())
            return
        while len(self._in_flight) < self._depth:
            begun = self._clock()
            plan = self._scheduler.plan(begun)
            if plan is None:
                return
            sent = self._clock()
            if not self._in_flight:
                self._got_on_at = sent
            self._device.send(plan)
            self._times.planned(plan, begun, sent)
            self._in_flight.append(plan)

    async def _land(self) -> None:
        """Let the oldest step land. With room on the device, return as well when a message has come."""
        result = None
        with trio.move_on_at(self._got_on_at + self._step_timeout_s) as scope:
            if len(self._in_flight) < self._depth:
                result = await race(self._device.receive, self._inbox.wait)
            else:
                result = await self._device.receive()
        if scope.cancelled_caught:
            result = await self._wait_for_a_hanging_step()
        if result is not None:
            self._in_flight.popleft()
            self._got_on_at = self._clock()
            self._scheduler.commit(result, self._got_on_at)
            self._times.landed(result, self._got_on_at, self._clock())
            self._recovery.landed()

    async def _wait_for_a_hanging_step(self) -> StepResult | None:
        self.stuck = f"A step has not landed for {self._step_timeout_s:g} s: {self._shape(self._in_flight[0])}."
        log.error("%s", self.stuck)
        self._device.give_up()
        result = await race(self._device.receive, self._tend)
        self.stuck = None
        log.warning("the step has landed after all")
        return result

    def _shape(self, plan: StepPlan) -> str:
        """What was in a step: enough to look for it in a profile, nothing of anybody's text."""
        num_decodes = plan.num_sequences - len(plan.chunk_sequences)
        return (
            f"{num_decodes} sequences with one token, {sum(length > 0 for length in plan.chunk_lengths)} with "
            f"{sum(plan.chunk_lengths)} prompt tokens, {len(plan.copy_targets)} blocks copied, "
            f"the longest context {self._scheduler.longest_context}"
        )

    async def _recover(self, failure: DeviceFailed) -> None:
        """The device has failed or is gone: bring it back, then settle with those who ran."""

        async def restore() -> bool:
            return await self._recovery.restore(failure)

        kept = await race(restore, self._tend, self._notice_absence)
        assert kept is not None  # the others never end
        self._in_flight.clear()
        self._times.lost()
        self._recovery.settle(failure, kept=kept)
        self.stuck = None

    async def _notice_absence(self) -> None:
        limit_s = RESTORE_FACTOR * self._step_timeout_s
        await trio.sleep(limit_s)
        self.stuck = f"The device has been away for {limit_s:g} s."
        log.error("%s", self.stuck)
        await trio.sleep_forever()

    async def _tend(self) -> None:
        """For ever, while nothing can be planned: take messages in, let deadlines pass, say what came of it."""
        while True:
            self._drain()
            self._scheduler.expire(self._clock())
            self._say()
            await self._rest()

    async def _rest(self) -> None:
        """Nothing can run: wait for a message, or for the next deadline of a request that waits."""
        if self._check:
            self._scheduler.check()
        deadline = self._scheduler.next_deadline
        with trio.move_on_at(math.inf if deadline is None else deadline):
            await self._inbox.wait()

    def _say(self) -> None:
        begun = self._clock()
        events = self._scheduler.take_events()
        if not events.empty:
            self._publish(events)
        self._times.said(begun, self._clock())
