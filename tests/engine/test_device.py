"""The device thread and the portal: real threads, waited for by events."""

import queue
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from triolet.engine.core.errors import EngineDead, ModelLoadError
from triolet.engine.core.plan import StepPlan, StepResult
from triolet.engine.device import DeviceFailed, Portal, ThreadDevice, is_out_of_memory


class Recorder:
    """A runner that notes the thread of each step; step 3 raises."""

    def __init__(self) -> None:
        self.threads = [threading.get_ident()]

    def execute(self, plan: StepPlan) -> StepResult:
        self.threads.append(threading.get_ident())
        if plan.step == 3:
            raise OSError("out of order")
        return StepResult(step=plan.step)

    def reset(self) -> None:
        self.threads.append(threading.get_ident())


def plan(step: int) -> StepPlan:
    return StepPlan(step=step, num_tokens=0, num_sequences=0)


@asynccontextmanager
async def running() -> AsyncIterator[ThreadDevice]:
    async with trio.open_nursery() as nursery:
        device = ThreadDevice()
        nursery.start_soon(device.run)
        try:
            yield device
        finally:
            device.close()


async def test_one_thread_makes_the_runner_and_runs_every_step() -> None:
    """The runner is made and used in one thread, which is not the loop's; results come in the order of the plans."""
    async with running() as device:
        runner = await device.start(lambda: ((recorder := Recorder()), recorder))
        for step in (1, 2):
            device.send(plan(step))
        assert [(await device.receive()).step for _ in range(2)] == [1, 2]
    assert len(set(runner.threads)) == 1
    assert runner.threads[0] != threading.get_ident()


async def test_a_step_that_raises_is_a_devicefailed_with_its_cause() -> None:
    """The error of a step comes out of receive, and says what it was."""
    async with running() as device:
        await device.start(lambda: (Recorder(), None))
        device.send(plan(3))
        with pytest.raises(DeviceFailed) as caught:
            await device.receive()
    assert str(caught.value.__cause__) == "out of order"


async def test_a_failed_device_drops_plans_until_it_is_restored() -> None:
    """What was sent behind the step that raised has no result; after the reset a plan of any number has one."""
    async with running() as device:
        await device.start(lambda: (Recorder(), None))
        for step in (3, 4):
            device.send(plan(step))
        with pytest.raises(DeviceFailed, match=r"^a step on the device failed \(OSError\)$"):
            await device.receive()
        assert await device.restore()
        device.send(plan(9))
        assert (await device.receive()).step == 9


async def test_a_device_that_cannot_be_restored_says_so() -> None:
    """The probe's own error is the cause."""

    class Gone(Recorder):
        def reset(self) -> None:
            raise RuntimeError("the device is gone")

    async with running() as device:
        await device.start(lambda: (Gone(), None))
        device.send(plan(3))
        with pytest.raises(DeviceFailed):
            await device.receive()
        with pytest.raises(DeviceFailed, match=r"^the device does not answer \(RuntimeError\)$") as caught:
            await device.restore()
    assert str(caught.value.__cause__) == "the device is gone"


async def test_a_thread_cannot_be_given_up() -> None:
    """Its step lands all the same."""
    async with running() as device:
        await device.start(lambda: (Recorder(), None))
        device.send(plan(1))
        device.give_up()
        assert (await device.receive()).step == 1


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory."), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (OSError("DefaultCPUAllocator"), False),
    ],
)
def test_running_out_of_memory_is_told_from_other_errors(error: Exception, expected: bool) -> None:
    """Python's error, torch's own for a GPU, and the text of its CPU allocator."""
    assert is_out_of_memory(error) is expected


async def test_what_loading_raises_is_raised_by_start() -> None:
    """A model that cannot be loaded is the caller's error, as it is."""

    def make_runner() -> tuple[Recorder, None]:
        raise ModelLoadError("no such file")

    async with running() as device:
        with pytest.raises(ModelLoadError, match="no such file"):
            await device.start(make_runner)


async def test_a_cancelled_receive_loses_no_result() -> None:
    """The result is there for the next call."""
    async with running() as device:
        await device.start(lambda: (Recorder(), None))
        with trio.CancelScope() as scope:
            scope.cancel()
            await device.receive()
        assert scope.cancelled_caught
        device.send(plan(1))
        assert (await device.receive()).step == 1


async def test_a_cancelled_nursery_waits_for_the_step_in_flight() -> None:
    """The thread is never abandoned: the scope ends after the step, and the thread with it."""
    may_end: queue.SimpleQueue[None] = queue.SimpleQueue()
    begun, ended = trio.Event(), []
    token = trio.lowlevel.current_trio_token()

    class Slow:
        def execute(self, plan: StepPlan) -> StepResult:
            token.run_sync_soon(begun.set)
            may_end.get()
            ended.append(plan.step)
            return StepResult(step=plan.step)

    with trio.CancelScope() as scope:
        async with running() as device:
            await device.start(lambda: (Slow(), None))
            device.send(plan(1))
            await begun.wait()
            scope.cancel()
            may_end.put(None)
            await device.receive()
    assert ended == [1]


async def test_a_cancelled_start_stops_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading looks for a cancellation now and then, and is left there."""
    loading = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def make_runner() -> tuple[Recorder, None]:
        token.run_sync_soon(loading.set)
        while True:
            trio.from_thread.check_cancelled()

    with trio.CancelScope() as scope:
        async with running() as device, trio.open_nursery() as nursery:
            nursery.start_soon(device.start, make_runner)
            await loading.wait()
            scope.cancel()
    assert scope.cancelled_caught


@asynccontextmanager
async def word() -> AsyncIterator[str]:
    yield "word"


def test_a_portal_runs_functions_in_its_scope() -> None:
    """Results and errors are the caller's; the scope stays open between calls."""

    async def shout(value: str) -> str:
        await trio.lowlevel.checkpoint()
        return value.upper()

    async def fail(value: str) -> str:
        raise ZeroDivisionError

    portal = Portal(word)
    assert [portal.call(shout), portal.call(shout)] == ["WORD", "WORD"]
    with pytest.raises(ZeroDivisionError):
        portal.call(fail)
    assert portal.call(shout) == "WORD"
    portal.close()
    portal.close()
    with pytest.raises(EngineDead, match="The engine has been closed"):
        portal.call(shout)


def test_a_portal_that_cannot_open_its_scope_says_why() -> None:
    """The constructor raises what entering the scope raises, and leaves no thread."""

    @asynccontextmanager
    async def broken() -> AsyncIterator[str]:
        raise ModelLoadError("no such file")
        yield ""

    num_threads = threading.active_count()
    with pytest.raises(ModelLoadError, match="no such file"):
        Portal(broken)
    assert "triolet" not in [thread.name for thread in threading.enumerate()]
    assert threading.active_count() <= num_threads + 1


def test_a_portal_whose_scope_has_died_says_why() -> None:
    """After the engine's death a call raises EngineDead with the reason."""

    @asynccontextmanager
    async def dying() -> AsyncIterator[trio.Event]:
        end = trio.Event()

        async def die() -> None:
            await end.wait()
            raise EngineDead("The engine has stopped: tired.")

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(die)
                yield end
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def wait_in_vain(end: trio.Event) -> None:
        end.set()
        await trio.sleep_forever()

    portal = Portal(dying)
    with pytest.raises(EngineDead):
        portal.call(wait_in_vain)
    portal._thread.join()
    with pytest.raises(EngineDead, match="tired"):
        portal.call(wait_in_vain)


class Interrupted(queue.SimpleQueue):  # type: ignore[type-arg]
    """Ctrl-C comes once: before something has been got, or with it in the hand."""

    with_something = False
    first = True

    def get(self, *args: object, **kwargs: object) -> object:
        something = super().get() if self.with_something or not self.first else None
        if self.first:
            self.first = False
            raise KeyboardInterrupt
        return something


class InterruptedLater(Interrupted):
    with_something = True


async def echo(value: str) -> str:
    return value


def test_an_interrupted_call_is_cancelled_and_the_portal_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C cancels the function, waits for its end, and is raised; the next call works."""
    ends: list[str] = []

    async def wait(value: str) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ends.append("cancelled")

    portal = Portal(word)
    with monkeypatch.context() as patch:
        patch.setattr("triolet.engine.device.queue.SimpleQueue", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            portal.call(wait)
    assert ends == ["cancelled"]
    assert portal.call(echo) == "word"
    portal.close()


def test_an_interrupt_at_the_very_end_of_a_call_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is there, and lost: nobody waits for another one."""
    portal = Portal(word)
    with monkeypatch.context() as patch:
        patch.setattr("triolet.engine.device.queue.SimpleQueue", InterruptedLater)
        with pytest.raises(KeyboardInterrupt):
            portal.call(echo)
    assert portal.call(echo) == "word"
    portal.close()


def test_an_interrupt_before_a_call_is_handed_over_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function does not run, and the caller does not wait for its end."""
    portal = Portal(word)
    token = portal._token
    calls: list[str] = []

    class Token:
        def run_sync_soon(self, function: Callable[..., object], *args: object) -> None:
            if function == portal._start_job:
                raise KeyboardInterrupt
            assert token is not None
            token.run_sync_soon(function, *args)

    async def note(value: str) -> None:
        calls.append(value)

    with monkeypatch.context() as patch:
        patch.setattr(portal, "_token", Token())
        with pytest.raises(KeyboardInterrupt):
            portal.call(note)
    assert portal.call(echo) == "word"
    assert calls == []
    portal.close()


@pytest.mark.parametrize("interrupted", [Interrupted, InterruptedLater])
def test_an_interrupt_while_a_portal_opens_ends_its_thread(
    monkeypatch: pytest.MonkeyPatch, interrupted: type[Interrupted]
) -> None:
    """Before and after the scope's run has begun."""
    with monkeypatch.context() as patch:
        patch.setattr("triolet.engine.device.queue.SimpleQueue", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Portal(word)
    assert "triolet" not in [thread.name for thread in threading.enumerate()]


def test_an_interrupt_that_wakes_nobody_ends_a_call_all_the_same() -> None:
    """As one does that comes just before the wait begins: here it is another thread that gets the signal."""

    async def wait(value: str) -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        await trio.sleep_forever()

    portal = Portal(word)
    with pytest.raises(KeyboardInterrupt):
        portal.call(wait)
    assert portal.call(echo) == "word"
    portal.close()
