"""The device and its thread: the only file of the engine that touches threads.

Imports trio, threading and queue. Torch keeps state per thread, so one long-lived thread loads the model and runs every
step: one `trio.to_thread.run_sync` in the engine's nursery, fed by a `SimpleQueue`, answering through
`TrioToken.run_sync_soon`. It is never abandoned: the nursery waits until the step in flight is over.

    loop's thread     send(plan) ──SimpleQueue──▶ device thread: runner.execute(plan)
                      receive() ◀──run_sync_soon──┘
"""

import queue
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar

import attrs
import outcome
import trio

from .core.errors import TrioletError
from .core.plan import StepPlan, StepResult
from .parking import ParkingSpot

T = TypeVar("T")


class Runner(Protocol):
    """Carries out plans, in their order. Synchronous; made and used in the device thread alone."""

    def execute(self, plan: StepPlan, /) -> StepResult: ...


class DeviceFailed(TrioletError):
    """A step raised on the device; `__cause__` says what. What the device holds can no longer be relied on."""


class Device(Protocol):
    """What the scheduler loop needs: plans go out without waiting, results come back in the same order."""

    def send(self, plan: StepPlan) -> None:
        """Hand a plan over. Never blocks."""

    async def receive(self) -> StepResult:
        """The result of the oldest plan that has none yet. A checkpoint in any case; cancelled, nothing is lost.
        Raises DeviceFailed for a step that raised."""


@attrs.frozen
class _Stop:
    """To the device thread: go home."""


class ThreadDevice:
    """A device in a thread of this process. Its queues hold at most as many plans as the loop has in flight.

    Start `run` in a nursery, `await start(...)`, use it, and call `close()` before that nursery waits for its tasks:
    `close` is synchronous so that no cancellation can keep the thread, and with it the nursery, alive.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[StepPlan | Callable[[], object] | _Stop] = queue.SimpleQueue()
        self._answers: deque[outcome.Outcome[object]] = deque()
        self._spot = ParkingSpot()
        self._closed = False
        self._runner: Runner | None = None  # the device thread's own

    async def run(self) -> None:
        """The thread's life. Ends after `close`, and not before, even when cancelled."""
        token = trio.lowlevel.current_trio_token()
        await trio.to_thread.run_sync(self._loop, token, limiter=trio.CapacityLimiter(1))

    async def start(self, make_runner: Callable[[], tuple[Runner, T]]) -> T:
        """Make the runner in the device thread; gives back what `make_runner` gave beside it.

        What `make_runner` raises is raised here. Cancelled: `make_runner` goes on to its next call of
        `trio.from_thread.check_cancelled()`.
        """

        def make() -> T:
            self._runner, extra = make_runner()
            return extra

        self._jobs.put(make)
        return await self._receive()  # type: ignore[return-value]

    def send(self, plan: StepPlan) -> None:
        self._jobs.put(plan)

    async def receive(self) -> StepResult:
        try:
            result = await self._receive()
        except Exception as error:
            raise DeviceFailed("A step failed on the device.") from error
        assert isinstance(result, StepResult)
        return result

    def close(self) -> None:
        """Let the thread end after what it has been sent. Idempotent, never blocks."""
        if not self._closed:
            self._closed = True
            self._jobs.put(_Stop())

    async def _receive(self) -> object:
        if self._answers:
            await trio.lowlevel.checkpoint()
        while not self._answers:
            await self._spot.wait()
        return self._answers.popleft().unwrap()

    def _deliver(self, answer: outcome.Outcome[object]) -> None:
        self._answers.append(answer)
        self._spot.wake()

    def _loop(self, token: trio.lowlevel.TrioToken) -> None:
        """In the device thread."""
        while True:
            job = self._jobs.get()
            if isinstance(job, _Stop):
                self._runner = None  # its memory goes in the thread that made it
                return
            answer = outcome.capture(job) if callable(job) else outcome.capture(self._execute, job)
            token.run_sync_soon(self._deliver, answer)

    def _execute(self, plan: StepPlan) -> StepResult:
        if self._runner is None:
            raise AssertionError("a plan came before the runner was made")
        return self._runner.execute(plan)
