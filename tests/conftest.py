"""Plumbing of the tests: `async def test_*` runs under `trio.run`, on a clock of its choice.

- A plain async test runs on the real clock, and fails if it isn't done after REAL_LIMIT_S.
- With the fixture `autojump_clock` it runs on a `trio.testing.MockClock` that jumps to the next deadline whenever every
  task waits: virtual hours pass at once, in an order that does not depend on the machine. A test in which nobody can
  ever go on fails with TooSlowError instead of hanging, because the limit is the last deadline there is. Real threads
  do not count as waiting tasks: keep them out of such tests.
- With `mock_clock` time stands still until the test calls `mock_clock.jump(seconds)`. Such a test has the limit of the
  real clock too, for nobody else would end it.

`parametrize` and other fixtures work as usual. Async fixtures don't exist: use `async with` in the test.
"""

import inspect
import logging
import threading
from collections.abc import Iterator
from functools import partial

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, settings

from .limits import REAL_LIMIT_S

VIRTUAL_LIMIT_S = 1_000_000

# An example of Hypothesis takes as long as it takes. The property tests have profiles of their own, as patient as this.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
if settings.default is None or settings.default.deadline is not None:
    settings.load_profile("patient")


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    """A clock that jumps over every wait."""
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.fixture
def mock_clock() -> trio.testing.MockClock:
    """A clock that stands still."""
    return trio.testing.MockClock()


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A test may run a command, which sets up the log for a process: the next test finds it as this one did."""
    root, ours = logging.getLogger(), logging.getLogger("triolet")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine function; leave every other test to pytest."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    clocks = [value for value in arguments.values() if isinstance(value, trio.testing.MockClock)]
    clock = clocks[0] if clocks else None
    trio.run(_limited, partial(pyfuncitem.obj, **arguments), VIRTUAL_LIMIT_S if clocks else REAL_LIMIT_S, clock=clock)
    return True


async def _limited(test, limit_s: float) -> None:  # type: ignore[no-untyped-def]
    token = trio.lowlevel.current_trio_token()
    with trio.fail_after(limit_s) as scope:
        timer = threading.Timer(REAL_LIMIT_S, token.run_sync_soon, [scope.cancel])
        timer.daemon = True
        if limit_s > REAL_LIMIT_S:
            timer.start()
        try:
            await test()
        finally:
            timer.cancel()
