"""What carries plans to the model: the protocol, and the threads of the engine, which nobody else touches.

`Device` is what the scheduler loop sees of a carrier; `ThreadDevice` is the one in this process, `ProcessDevice` (in
device_process.py) the one in a process of its own.

`ThreadDevice`: torch keeps state per thread, so one long-lived thread loads the model and runs every step. It is one
`trio.to_thread.run_sync` in the engine's nursery, fed by a `SimpleQueue`, answering through `TrioToken.run_sync_soon`,
and never abandoned: the nursery waits until the step in flight is over.

`Portal`: the synchronous front door needs an event loop that goes on between two calls; it gets one in a thread.

    loop's thread     send(plan) ──SimpleQueue──▶ device thread: runner.execute(plan)
                      receive() ◀──run_sync_soon──┘
"""

import queue
import threading
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Generic, Protocol, TypeVar, runtime_checkable

import attrs
import outcome
import trio

from .core.errors import EngineDead, TrioletError
from .core.plan import StepPlan, StepResult
from .outcomes import Outcomes

T = TypeVar("T")
R = TypeVar("R")


class Runner(Protocol):
    """Carries out plans, in their order. Synchronous; made and used in one thread."""

    def execute(self, plan: StepPlan, /) -> StepResult: ...

    def reset(self) -> None:
        """Forget the batch, as if new; what the KV blocks hold stays. The next plan may have any number. Raises if the
        device no longer computes."""


@runtime_checkable
class RunnerAhead(Runner, Protocol):
    """A runner that starts a step and gives its result later: the next plan is launched while one computes."""

    @property
    def num_under_way(self) -> int:
        """Steps that were launched and not collected."""

    def launch(self, plan: StepPlan, /) -> None:
        """Start a step; does not wait for its tokens."""

    def ready(self) -> bool:
        """Whether the oldest step under way is done."""

    def collect(self) -> StepResult:
        """The result of the oldest step under way, waited for."""


POLL_S = 0.0002
"""How often a step under way is asked whether it is done, while the next plan may come at any time."""
MOST_UNDER_WAY = 2


class DeviceFailed(TrioletError):
    """A step raised on the device, which has to be restored: it takes no plan until then. The message names the type of
    what was raised and is fit for clients; where that happened in this process, `__cause__` is the error itself."""

    def __init__(self, kind: str, *, out_of_memory: bool = False, what: str = "a step on the device failed") -> None:
        super().__init__(f"{what} ({kind})")
        self.kind = kind
        """The name of the error's type."""
        self.out_of_memory = out_of_memory

    @classmethod
    def by(cls, error: Exception, **rest: str) -> "DeviceFailed":
        """What is to be said of an error; the tensors of its frames are let go."""
        traceback.clear_frames(error.__traceback__)
        failed = cls(type(error).__name__, out_of_memory=is_out_of_memory(error), **rest)
        failed.__cause__ = error
        return failed


class DeviceLost(DeviceFailed):
    """The device is gone with all that it held."""

    def __init__(self, epitaph: str) -> None:
        super().__init__(epitaph, what="the runner process is gone")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a smaller step might have gone well. Torch has a type of error for its GPUs, and a text for the CPU."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))
    )


class Device(Protocol):
    """What the scheduler loop needs: plans go out without waiting, results come back in the same order."""

    def send(self, plan: StepPlan) -> None:
        """Hand a plan over. Never blocks."""

    async def receive(self) -> StepResult:
        """The result of the oldest plan that has none yet. A checkpoint in any case; cancelled, nothing is lost.
        Raises DeviceFailed for a step that raised: the plans behind it are dropped, until `restore`."""

    async def restore(self) -> bool:
        """After `receive` has raised: make the device ready for a first plan. True: what had been computed before is
        still in its blocks; False: it is a new one. Raises DeviceFailed when it does not answer, and DeviceLost when
        another try, with a new device, is worth it."""

    async def watch(self) -> None:
        """With no step in flight: wait until the device is lost all the same, and raise DeviceLost. Cancelled, nothing
        is lost."""

    def give_up(self) -> None:
        """A step takes too long. A carrier that can end it does, and `receive` raises DeviceLost; any other goes on."""


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
        self._outcomes = Outcomes()
        self._closed = False
        # The device thread's own:
        self._runner: Runner | None = None
        self._broken = False

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
        return await self._outcomes.take()  # type: ignore[return-value]

    def send(self, plan: StepPlan) -> None:
        self._jobs.put(plan)

    async def receive(self) -> StepResult:
        result = await self._outcomes.take()
        assert isinstance(result, StepResult)
        return result

    async def restore(self) -> bool:
        self._jobs.put(self._reset)
        await self._outcomes.take()
        return True

    async def watch(self) -> None:
        await trio.sleep_forever()

    def give_up(self) -> None:
        """A thread cannot be ended: its step lands or it does not."""

    def close(self) -> None:
        """Let the thread end after what it has been sent. Idempotent, never blocks."""
        if not self._closed:
            self._closed = True
            self._jobs.put(_Stop())

    def _loop(self, token: trio.lowlevel.TrioToken) -> None:
        """In the device thread."""

        def answer(function: Callable[..., object], *args: object) -> None:
            token.run_sync_soon(self._outcomes.put, outcome.capture(function, *args))

        while True:
            job = self._next_job()
            if isinstance(job, _Stop):
                self._runner = None  # its memory goes in the thread that made it
                return
            if job is None:
                answer(self._collect)
            elif callable(job):
                answer(job)
            elif not self._broken:
                if isinstance(self._runner, RunnerAhead):
                    self._launch(self._runner, job, answer)
                else:
                    answer(self._execute, job)

    def _next_job(self) -> StepPlan | Callable[[], object] | _Stop | None:
        """None: the oldest step under way is to be collected."""
        runner = self._runner
        if self._broken or not isinstance(runner, RunnerAhead) or not runner.num_under_way:
            return self._jobs.get()
        while runner.num_under_way < MOST_UNDER_WAY and not _is_ready(runner):
            with suppress(queue.Empty):
                return self._jobs.get(timeout=POLL_S)
        return None

    def _launch(self, runner: RunnerAhead, plan: StepPlan, answer: Callable[..., None]) -> None:
        """A step that cannot be started fails after those before it have landed."""
        try:
            runner.launch(plan)
        except Exception as error:
            while runner.num_under_way and not self._broken:
                answer(self._collect)
            if not self._broken:
                self._broken = True
                answer(_raise, DeviceFailed.by(error))

    def _collect(self) -> StepResult:
        assert isinstance(self._runner, RunnerAhead)
        try:
            return self._runner.collect()
        except Exception as error:
            self._broken = True
            raise DeviceFailed.by(error) from error

    def _execute(self, plan: StepPlan) -> StepResult:
        if self._runner is None:
            raise AssertionError("a plan came before the runner was made")
        try:
            return self._runner.execute(plan)
        except Exception as error:
            self._broken = True
            raise DeviceFailed.by(error) from error

    def _reset(self) -> None:
        assert self._runner is not None
        try:
            self._runner.reset()
        except Exception as error:
            raise DeviceFailed.by(error, what="the device does not answer") from error
        self._broken = False


def _is_ready(runner: RunnerAhead) -> bool:
    """Whether to collect: also where the device has failed, since collecting says so."""
    try:
        return runner.ready()
    except Exception:
        return True


def _raise(error: Exception) -> None:
    raise error


def _next_of(answers: "queue.SimpleQueue[R]") -> R:
    """Waits. A Ctrl-C that comes just before a wait in C begins is noticed at its end, so it ends now and then."""
    while True:
        with suppress(queue.Empty):
            return answers.get(timeout=0.5)


@attrs.define(eq=False)
class _Job(Generic[T, R]):
    """One call through a portal."""

    function: Callable[[T], Awaitable[R]]
    answer: "queue.SimpleQueue[outcome.Outcome[R]]" = attrs.field(factory=lambda: queue.SimpleQueue())
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    is_under_way: bool = False


class Portal(Generic[T]):
    """A trio run in a thread of its own, for callers who have none: it holds one scope open and runs functions in it.

    `open_scope` is entered in that run; what it raises is raised by the constructor. The thread is a daemon, so a
    script that ends without `close` is not kept alive. Used from any threads but its own.
    """

    def __init__(self, open_scope: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._cancel_start = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._end = trio.Event()
        self._failure: BaseException | None = None
        started: queue.SimpleQueue[outcome.Outcome[None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._live, args=(open_scope, started), name="triolet", daemon=True)
        self._thread.start()
        try:
            _next_of(started)  # the token is there
            _next_of(started).unwrap()
        except BaseException:  # an interrupt may come at any place
            while self._token is None and self._thread.is_alive():
                self._thread.join(0.01)
            if self._token is not None:
                with suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(self._cancel_start.cancel)
            self._thread.join()
            raise

    def call(self, function: Callable[[T], Awaitable[R]]) -> R:
        """Run an async function with what the scope gave; its result or error is the caller's.

        Interrupted (Ctrl-C), the function is cancelled, and the interrupt raised once it has ended. When the scope has
        ended with an error, raises EngineDead from it.
        """
        job: _Job[T, R] = _Job(function)
        assert self._token is not None
        try:
            self._token.run_sync_soon(self._start_job, job)
            result = _next_of(job.answer)
        except trio.RunFinishedError:
            raise self._ended() from self._failure
        except BaseException:  # at any place of the above
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._break_off, job)
                _next_of(job.answer)
            raise
        return result.unwrap()

    def close(self) -> None:
        """Leave the scope and end the thread. Idempotent; what the scope raised on the way out is dropped."""
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._end.set)
        if threading.current_thread() is not self._thread:  # a garbage collection may come at any place
            self._thread.join()

    def _ended(self) -> TrioletError:
        if isinstance(self._failure, EngineDead):
            return EngineDead(self._failure.message)
        return EngineDead("The engine has been closed.")

    # In the portal's thread.

    def _live(
        self,
        open_scope: Callable[[], AbstractAsyncContextManager[T]],
        started: "queue.SimpleQueue[outcome.Outcome[None]]",
    ) -> None:
        try:
            trio.run(self._main, open_scope, started)
        except BaseException as error:
            self._failure = error
        finally:  # read only if it has not started
            started.put(outcome.Error(self._failure or self._ended()))

    async def _main(
        self,
        open_scope: Callable[[], AbstractAsyncContextManager[T]],
        started: "queue.SimpleQueue[outcome.Outcome[None]]",
    ) -> None:
        self._token = trio.lowlevel.current_trio_token()
        started.put(outcome.Value(None))
        with self._cancel_start:
            async with open_scope() as self._value, trio.open_nursery() as self._nursery:
                started.put(outcome.Value(None))
                await self._end.wait()
                self._nursery.cancel_scope.cancel()
        self._nursery = None

    def _start_job(self, job: "_Job[T, R]") -> None:
        if self._nursery is None or self._nursery.cancel_scope.cancel_called:
            job.answer.put(outcome.Error(self._ended()))
        else:
            job.is_under_way = True
            self._nursery.start_soon(self._run_job, job)

    def _break_off(self, job: "_Job[T, R]") -> None:
        """Its caller has been interrupted: before it was handed over, while it ran, or with the answer in his hand. He
        waits for an answer in any case."""
        job.scope.cancel()
        if not job.is_under_way:
            job.answer.put(outcome.Error(self._ended()))

    async def _run_job(self, job: "_Job[T, R]") -> None:
        result: outcome.Outcome[R] | None = None
        try:
            with job.scope:
                try:
                    result = outcome.Value(await job.function(self._value))
                except Exception as error:
                    result = outcome.Error(error)
        finally:  # without a result, the caller was interrupted or the engine's scope ended first
            job.is_under_way = False
            job.answer.put(result if result is not None else outcome.Error(self._ended()))
