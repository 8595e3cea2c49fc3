"""Ctrl-C as a conversation hears it: raised where somebody listens for it, and nowhere else. The standard library only.

Python raises KeyboardInterrupt between any two statements, also in those that answer the one before; and one that comes
when a function in C is about to wait, for a key or for an answer, is noticed only when that wait is over. Here it is
kept until somebody listens, and a timer ends such waits for a moment, several times a second, so that none is missed.
The third that is kept is not: who presses so often does not want to wait, and it is raised wherever it comes.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self, TypeVar

T = TypeVar("T")

TICK_S = 0.2
MOST_KEPT = 2


class CtrlC:
    """A scope in which SIGINT, and SIGALRM for the timer, are ours; as they were before it afterwards.

    Outside of the main thread, and where the process was told to ignore SIGINT, nothing is changed.
    """

    def __init__(self) -> None:
        self._is_listening = False
        self._num_kept = 0
        self._before: dict[signal.Signals, object] = {}
        self._timer_before = (0.0, 0.0)

    def listen(self, wait: Callable[[], T]) -> T:
        """What `wait` returns. Raises KeyboardInterrupt for a Ctrl-C that comes meanwhile, or has come while nobody
        listened; each is raised once, and while that is answered nobody listens."""
        self._is_listening = True
        try:
            if self._num_kept:
                self._num_kept = 0
                raise KeyboardInterrupt
            return wait()
        finally:
            self._is_listening = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT)):
            self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._hear)
            if signal.getsignal(signal.SIGALRM) is not None:  # None: installed by C code, which we could not put back
                self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, lambda *_: None)
                self._timer_before = signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if signal.SIGALRM in self._before:
            signal.setitimer(signal.ITIMER_REAL, *self._timer_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()
        if self._num_kept and kind is None:
            self._num_kept = 0
            raise KeyboardInterrupt  # nobody listens any more

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._is_listening or self._num_kept >= MOST_KEPT:
            self._is_listening, self._num_kept = False, 0
            raise KeyboardInterrupt
        self._num_kept += 1
