"""A thread that gives way to others: for work that nobody's tokens may wait for.

Imports trio. Trio's own worker threads are not made nice, because a thread cannot go back, and they are used again.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable

import outcome
import trio

NICENESS = 10
"""A tenth of the share of a thread of the device, where cores are short; at 19, a hundredth, it would not get through.
"""


async def run_nicely(prepare: Callable[[], object], work: Callable[[], object], ended: Callable[[], None]) -> object:
    """What `work()` gives or raises, run in a thread of its own at a low priority, after `prepare()` at the usual
    one: a thread that holds the interpreter must not give way.

    Cancellable: the thread then ends for nobody, and the process not before it. `ended` is called in the event loop
    when it has ended, in any case.
    """
    token, task = trio.lowlevel.current_trio_token(), trio.lowlevel.current_task()
    gone = False

    def give_way_and_work() -> object:
        prepare()
        if sys.platform == "linux":  # where a thread has a niceness of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        return work()

    def deliver(result: "outcome.Outcome[object]") -> None:
        ended()
        if not gone:
            trio.lowlevel.reschedule(task, result)

    def run() -> None:
        result = outcome.capture(give_way_and_work)
        with contextlib.suppress(trio.RunFinishedError):  # nobody is left to be told
            token.run_sync_soon(deliver, result)

    def abandon(_: object) -> trio.lowlevel.Abort:
        nonlocal gone
        gone = True
        return trio.lowlevel.Abort.SUCCEEDED

    # Not a daemon: the process would end in the middle of the library's work, and abort.
    threading.Thread(target=run, name="triolet nice thread").start()
    return await trio.lowlevel.wait_task_rescheduled(abandon)
