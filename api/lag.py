"""How late the event loop is: a task that sleeps a while and measures by how much it is woken too late.

Imports trio. Whatever holds the loop up (a long prompt tokenized in it, a page rendered) shows here before it shows in
anybody's stream.
"""

from collections.abc import Callable

import trio

INTERVAL_S = 0.25


async def watch_lag(observe: Callable[[float], None], interval_s: float = INTERVAL_S) -> None:
    """Tell `observe` every `interval_s` how many seconds late that was. Runs until cancelled."""
    while True:
        due = trio.current_time() + interval_s
        await trio.sleep_until(due)
        observe(max(0.0, trio.current_time() - due))
