"""The scheduler loop: once per step, drain the inbox, plan, send, await the result, commit, publish.

Imports trio. It alone touches the scheduler. It never awaits a client or a tokenizer: the device and, when there is
nothing to do, its own inbox are all it waits for. Aborts therefore act at step boundaries. What it publishes is put
into the detokenizer's inbox, so the detokenizer works while the device computes the next step.
"""

import math
from collections.abc import Callable
from typing import assert_never

import trio

from .core.events import StepEvents
from .core.scheduler import Scheduler
from .device import Device
from .inbox import Inbox
from .messages import Abort, SchedulerMessage, Submit


class SchedulerLoop:
    """One scheduler and one device. `depth` is how many steps may be on the device at a time."""

    def __init__(
        self,
        scheduler: Scheduler,
        device: Device,
        inbox: Inbox[SchedulerMessage],
        publish: Callable[[StepEvents], None],
        *,
        depth: int = 1,
        check: bool = False,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self._scheduler = scheduler
        self._device = device
        self._inbox = inbox
        self._publish = publish
        self._depth = depth
        self._check = check
        self._clock = clock
        self._num_in_flight = 0

    async def run(self) -> None:
        """Until cancelled. Raises what the device raises, and AssertionError for a broken law."""
        while True:
            self._drain()
            self._fill()
            self._say()
            if self._num_in_flight:
                await self._land()
                self._say()
            else:
                await self._rest()

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
                case _:
                    assert_never(message)

    def _fill(self) -> None:
        """Send plans until the device has its fill or nothing more can run."""
        while self._num_in_flight < self._depth:
            plan = self._scheduler.plan(self._clock())
            if plan is None:
                return
            self._device.send(plan)
            self._num_in_flight += 1

    async def _land(self) -> None:
        result = await self._device.receive()
        self._num_in_flight -= 1
        self._scheduler.commit(result, self._clock())

    async def _rest(self) -> None:
        """Nothing can run: wait for a message, or for the next deadline of a request that waits."""
        if self._check:
            self._scheduler.check()
        deadline = self._scheduler.next_deadline
        with trio.move_on_at(math.inf if deadline is None else deadline):
            await self._inbox.wait()

    def _say(self) -> None:
        events = self._scheduler.take_events()
        if not events.empty:
            self._publish(events)
