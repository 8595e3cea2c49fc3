"""Ctrl-C as a conversation hears it: raised where somebody listens for it, and nowhere else. The standard library only.

Python raises KeyboardInterrupt between any two statements, also in those that answer the one before; and one that comes
when a function in C is about to wait, for a key or for an answer, is noticed only when that wait is over. Here it is
kept until somebody listens, and a timer ends such waits for a moment, several times a second, so that none is missed.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self, TypeVar

T = TypeVar("T")

TICK_S = 0.2


class CtrlC:
    """A scope in which SIGINT, and SIGALRM for the timer, are ours; as they were before it afterwards.

    Outside of the main thread, and where the process was told to ignore SIGINT, nothing is changed.
    """

    def __init__(self) -> None:
        self._is_listening = False
        self._is_pending = False
        self._before: dict[signal.Signals, object] = {}

    def listen(self, wait: Callable[[], T]) -> T:
        """What `wait` returns. Raises KeyboardInterrupt for a Ctrl-C that comes meanwhile, or has come while nobody
        listened; each is raised once, and while that is answered nobody listens."""
        self._is_listening = True
        try:
            if self._is_pending:
                self._is_pending = False
                raise KeyboardInterrupt
            return wait()
        finally:
            self._is_listening = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT)):
            self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._hear)
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, lambda *_: None)
            signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._is_listening:
            self._is_listening = False
            raise KeyboardInterrupt
        self._is_pending = True
