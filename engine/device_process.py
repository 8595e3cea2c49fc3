"""The process carrier: the model runs in a process of its own, which may die without the engine.

`ProcessDevice` speaks to `device_child.py` over a socket pair, one frame a step each way (device_wire.py). A process
that crashes, is killed, or is given up because it hangs is reaped, `receive` raises DeviceLost, and `restore` starts
another, which loads the model again. The process never outlives the engine's scope: leaving it kills it.

    engine's loop    send(plan) ──socket──▶ runner process: runner.execute(plan)
                     receive() ◀──socket──┘
"""

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import TypeVar

import msgspec
import outcome
import trio

from .core.errors import ConfigurationError, ModelLoadError, StartError
from .core.plan import StepPlan, StepResult
from .device import DeviceFailed, DeviceLost
from .device_wire import Failure, FrameBuffer, Kind, Log, Progress, Start, decode_result, encode
from .outcomes import Outcomes
from .parking import ParkingSpot

T = TypeVar("T")

PROBE_S_MAX = 30.0
"""A process that has not forgotten its batch and computed a token by then does not answer: it is replaced."""

REAP_S_MAX = 10.0
"""How long a killed process may take to be gone before it is left to the kernel."""

_START_ERRORS: dict[str, type[StartError]] = {error.__name__: error for error in (ConfigurationError, ModelLoadError)}


class ProcessDevice:
    """A device in a process of its own. Its queues hold at most as many plans as the loop has in flight.

    Start `run` in a nursery, `await start(...)`, use it, and call `close()` before that nursery waits for its tasks:
    `close` is synchronous, and kills the process.
    """

    def __init__(self, factory: str, *, progress: Callable[[str, int, int | None], None] | None = None) -> None:
        """`factory` names a `device_child.Factory`; `progress` is told what that reports."""
        self._factory = factory
        self._progress = progress
        self._order = b""
        self._first_answer: bytes | None = None
        self._child: _Child | None = None
        self._outcomes = Outcomes()
        self._nursery: trio.Nursery | None = None
        self._opened, self._closed = trio.Event(), trio.Event()

    @property
    def pid(self) -> int | None:
        """The runner process, as the system knows it; None while there is none."""
        return None if self._child is None else self._child.process.pid

    async def run(self) -> None:
        """The life of the processes. After `close`, and when cancelled, it ends as soon as the last one is gone."""
        async with trio.open_nursery() as self._nursery:
            self._opened.set()
            await self._closed.wait()
            self._nursery.cancel_scope.cancel()

    async def start(self, order: object, answer: type[T]) -> T:
        """Make the runner in a new process; `order` is for the factory, and `answer` the type of what it gives back.

        Raises the factory's StartError as itself, and ModelLoadError for any other end. Cancelled: `close` ends it.
        """
        self._order = msgspec.msgpack.encode(order)
        try:
            self._first_answer = await self._launch()
        except DeviceLost as lost:
            raise ModelLoadError(f"The model cannot be loaded: {lost.message}.") from lost
        return msgspec.msgpack.decode(self._first_answer, type=answer)

    def set_order(self, order: object) -> None:
        """What a process that replaces the first is started with. Its answer must be the first one's, byte for byte."""
        self._order = msgspec.msgpack.encode(order)

    def send(self, plan: StepPlan) -> None:
        if self._child is not None:
            self._child.send(encode(Kind.PLAN, plan))

    async def receive(self) -> StepResult:
        result = await self._outcomes.take()
        assert isinstance(result, StepResult)
        return result

    async def restore(self) -> bool:
        if self._child is not None:
            await self._probe(self._child)
            return True
        if await self._launch() != self._first_answer:
            raise ModelLoadError("The runner process came back with another KV cache than it had.")
        return False

    async def watch(self) -> None:
        await self._outcomes.take()
        raise AssertionError("the runner process has answered what nobody asked")

    def give_up(self) -> None:
        if self._child is not None:
            self._child.kill("it hung and was killed")

    def close(self) -> None:
        """Kill the process. Idempotent, never blocks."""
        self._closed.set()
        if self._child is not None:
            self._child.kill("it was closed")

    async def _launch(self) -> bytes:
        await self._opened.wait()
        assert self._nursery is not None
        self._outcomes.clear()
        self._child = _Child()
        self._nursery.start_soon(self._attend, self._child)
        level = logging.getLogger("triolet").getEffectiveLevel()
        self._child.send(encode(Kind.START, Start(factory=self._factory, order=self._order, log_level=level)))
        answer = await self._outcomes.take()
        assert isinstance(answer, bytes)
        return answer

    async def _probe(self, child: "_Child") -> None:
        """Let it forget its batch. One that does not answer is killed, and DeviceLost raised."""
        child.send(encode(Kind.RESET))
        try:
            with trio.move_on_after(PROBE_S_MAX):
                await self._outcomes.take()
                return
        except DeviceLost:
            raise
        except DeviceFailed:
            pass
        child.kill("it did not answer after a failed step, and was killed")
        while True:
            await self._outcomes.take()  # the last thing to come is its DeviceLost

    async def _attend(self, child: "_Child") -> None:
        """A process's life: pass on what it says until it is gone."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(child.write)
                await child.read(self._take)
                nursery.cancel_scope.cancel()
        finally:
            child.kill()
            await child.reap()
            self._child = None
        self._outcomes.put(outcome.Error(DeviceLost(child.epitaph)))

    def _take(self, kind: Kind, payload: bytes) -> None:
        match kind:
            case Kind.RESULT:
                self._outcomes.put(outcome.Value(decode_result(payload)))
            case Kind.STARTED | Kind.READY:
                self._outcomes.put(outcome.Value(payload))
            case Kind.STEP_FAILED:
                failure = msgspec.msgpack.decode(payload, type=Failure)
                self._outcomes.put(outcome.Error(DeviceFailed(failure.kind, out_of_memory=failure.out_of_memory)))
            case Kind.START_FAILED:
                failure = msgspec.msgpack.decode(payload, type=Failure)
                self._outcomes.put(outcome.Error(_START_ERRORS[failure.kind](failure.message)))
            case Kind.PROGRESS:
                progress = msgspec.msgpack.decode(payload, type=Progress)
                if self._progress is not None:
                    self._progress(progress.what, progress.done, progress.total)
            case Kind.LOG:
                record = msgspec.msgpack.decode(payload, type=Log)
                logging.getLogger(record.name).log(record.level, "%s", record.text)
            case _:
                raise AssertionError(f"the runner process sent a {kind.name}")


class _Child:
    """One runner process and our end of its socket. Born running; whoever makes it reaps it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._socket.setblocking(False)
            # Not through trio: it would spawn from a worker thread, and the process dies with the thread it comes from.
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", f"{__package__}.device_child", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            )
        self._killed_because: str | None = None
        self._unsent = bytearray()
        self._spot = ParkingSpot()
        self._frames = FrameBuffer()

    @property
    def epitaph(self) -> str:
        """How it ended, fit for clients."""
        if self._killed_because is not None:
            return self._killed_because
        status = self.process.returncode
        if status is not None and status < 0:
            return f"killed by {signal.Signals(-status).name}"
        return f"exit status {status}"

    def send(self, frame: bytes) -> None:
        """Never blocks: what the socket does not take now goes out from `write`. To a dead process it goes nowhere."""
        sent = 0
        if not self._unsent:
            try:
                sent = self._socket.send(frame)
            except BlockingIOError:
                pass
            except OSError:
                return  # the reader will see that it is gone
        if sent < len(frame):
            self._unsent += memoryview(frame)[sent:]
            self._spot.wake()

    async def write(self) -> None:
        """Send what `send` could not."""
        while True:
            while not self._unsent:
                await self._spot.wait()
            await trio.lowlevel.wait_writable(self._socket)
            try:
                del self._unsent[: self._socket.send(self._unsent)]
            except BlockingIOError:
                continue
            except OSError:
                return

    async def read(self, take: Callable[[Kind, bytes], None]) -> None:
        """Give `take` each frame, until the process is gone."""
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                continue
            except OSError:
                return
            if not data:
                return
            for kind, payload in self._frames.feed(data):
                take(kind, payload)

    def kill(self, because: str | None = None) -> None:
        """Idempotent; the first reason stays, and one that it had of its own counts for more."""
        if self.process.poll() is None:
            self._killed_because = self._killed_because or because
            self.process.kill()

    async def reap(self) -> None:
        """Wait until it is gone, cancelled or not. Never waits long."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + REAP_S_MAX):
            await trio.to_thread.run_sync(self.process.wait, abandon_on_cancel=True)
        self._socket.close()
