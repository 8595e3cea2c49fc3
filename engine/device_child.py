"""The runner process: `python -m triolet.engine.device_child FD`, the other end of `ProcessDevice`.

One thread: it reads a frame, does what it says, answers. It imports what its factory needs, by the name it is given,
and nothing it reads can run anything else. It never outlives the engine: the kernel kills it when the thread that
started it is gone (Linux), and everywhere it ends when the socket does. The terminal's and the service manager's
signals are the engine's to answer, so they are ignored here. What it logs goes to the engine; what it prints passes
through.
"""

import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module

import msgspec

from .core.errors import ModelLoadError, StartError
from .device import Runner, is_out_of_memory
from .device_wire import Failure, Kind, Log, Progress, Start, decode_plan, encode, receive_frame

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1

Report = Callable[[str, int, int | None], None]
Factory = Callable[[bytes, Report], tuple[Runner, object]]
"""From an order to a runner, and what `ProcessDevice.start` gives back (encoded as msgpack)."""


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _die_with_parent()
    with socket.socket(fileno=int(sys.argv[1])) as connection, suppress(BrokenPipeError, ConnectionResetError):
        _serve(connection)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _serve(connection: socket.socket) -> None:
    frame = receive_frame(connection)
    if frame is None:
        return
    start = msgspec.msgpack.decode(frame[1], type=Start)
    engine = _WayToEngine(connection)
    logging.basicConfig(level=start.log_level, format="%(message)s", handlers=[engine])
    runner = _make_runner(start, engine)
    if runner is not None:
        _run(runner, connection, engine)


class _WayToEngine(logging.Handler):
    """Frames to the engine, from any thread. Log records go there too, their tracebacks written out."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._connection = connection
        self._pid = os.getpid()

    def send(self, frame: bytes) -> None:
        self.acquire()
        try:
            self._connection.sendall(frame)
        finally:
            self.release()

    def progress(self, what: str, done: int, total: int | None) -> None:
        self.send(encode(Kind.PROGRESS, Progress(what=what, done=done, total=total)))

    def emit(self, record: logging.LogRecord) -> None:
        if os.getpid() == self._pid:  # a process that a library forks has no say on this socket
            self.send(encode(Kind.LOG, Log(name=record.name, level=record.levelno, text=self.format(record))))


def _make_runner(start: Start, engine: _WayToEngine) -> Runner | None:
    """None: it could not be made, and the engine has been told why."""
    try:
        module, _, name = start.factory.partition(":")
        factory: Factory = getattr(import_module(module), name)
        runner, answer = factory(start.order, engine.progress)
    except (BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:
        engine.send(encode(Kind.START_FAILED, _failure(error)))
        return None
    engine.send(encode(Kind.STARTED, answer))
    return runner


def _failure(error: Exception) -> Failure:
    if isinstance(error, StartError):
        return Failure(kind=type(error).__name__, message=error.message)
    log.error("the runner could not be made", exc_info=error)
    return Failure(kind=ModelLoadError.__name__, message=f"The model cannot be loaded: {type(error).__name__}: {error}")


def _run(runner: Runner, connection: socket.socket, engine: _WayToEngine) -> None:
    """Carry plans out until the engine has gone. After one that raised, the plans behind it are dropped until RESET."""
    broken = False
    while (frame := receive_frame(connection)) is not None:
        kind, payload = frame
        if kind is Kind.PLAN and broken:
            continue
        try:
            if kind is Kind.PLAN:
                answer = encode(Kind.RESULT, runner.execute(decode_plan(payload)))
            else:
                runner.reset()
                broken, answer = False, encode(Kind.READY)
        except Exception as error:
            broken = True
            log.error("a step failed", exc_info=error)
            traceback.clear_frames(error.__traceback__)
            failure = Failure(kind=type(error).__name__, out_of_memory=is_out_of_memory(error))
            answer = encode(Kind.STEP_FAILED, failure)
        engine.send(answer)


if __name__ == "__main__":
    main()
