"""The scope of an engine: `open_engine` loads a model, starts the actors, gives the Engine, and ends everything.

Imports trio. The nurseries here own every task of the engine, and the device's thread. When an actor dies the others
die with it: every open request gets one `error` event, `Engine.health` gives the reason, the readers get a moment to
pass the news on, and then the scope itself is cancelled and left with EngineDead.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio

from .assembly import Assembly, EngineParts
from .build import build, make_device
from .config import EngineConfig
from .core.errors import EngineDead
from .device import DeviceFailed
from .engine import Engine
from .loading import Progress
from .observer import Observer

log = logging.getLogger(__name__)

LAST_WORDS_S = 2.0
"""How long the readers of a dead engine have to pass its error event on: their tasks live inside its scope."""


@asynccontextmanager
async def open_engine(
    config: EngineConfig, *, observer: Observer | None = None, progress: Progress | None = None
) -> AsyncIterator[Engine]:
    """An engine with its model loaded, for as long as the scope lasts.

    `progress(what, done, total)` is called from worker threads while the model is fetched and loaded. Entering raises
    StartError (ConfigurationError, ModelLoadError); the scope is left with EngineDead when an actor has died.
    Cancelled, it waits for the step in flight, or while loading for the next call of `progress`.
    """
    with _one_error():
        async with trio.open_nursery() as nursery:
            device = make_device(config, progress)
            nursery.start_soon(device.run)
            try:
                parts = await build(config, device, progress)
                check = log.isEnabledFor(logging.DEBUG)
                async with run_engine(parts, observer=observer, depth=parts.depth, check=check) as engine:
                    yield engine
            finally:
                device.close()


@asynccontextmanager
async def run_engine(
    parts: EngineParts, *, observer: Observer | None = None, depth: int = 1, check: bool = False
) -> AsyncIterator[Engine]:
    """An engine made of given parts: what `open_engine` does after loading, and all that a simulation needs.

    `check`: the scheduler asserts its laws whenever it idles. They are asserted at the end in any case.
    """
    assembly = Assembly(parts, observer=observer, depth=depth, check=check)
    with _one_error():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_supervise, assembly)
            try:
                yield assembly.engine
            finally:
                assembly.engine._die("The engine has been closed.")
            nursery.cancel_scope.cancel()
    parts.scheduler.check()


async def _supervise(assembly: Assembly) -> None:
    """Run the actors. The first that dies takes the engine with it."""
    try:
        async with trio.open_nursery() as nursery:
            for name, run in assembly.actors.items():
                nursery.start_soon(_run_actor, name, run)
    except ExceptionGroup as group:
        died = next(_leaves(group))
        assert isinstance(died, _ActorDied)
        log.critical("%s", died.reason, exc_info=died.__cause__)
        error = assembly.engine._die(died.reason, died.__cause__)
        with trio.move_on_after(LAST_WORDS_S):
            await assembly.registry.wait_all_left()
        raise error from died.__cause__


class _ActorDied(Exception):
    """Which actor, and a reason that is fit for clients: types, no texts, no paths."""

    def __init__(self, name: str, cause: Exception) -> None:
        what = cause.message if isinstance(cause, DeviceFailed) else f"the {name} failed ({type(cause).__name__})"
        self.reason = f"The engine has stopped: {what}."
        super().__init__(self.reason)


async def _run_actor(name: str, run: Callable[[], Awaitable[None]]) -> None:
    try:
        await run()
    except Exception as error:
        raise _ActorDied(name, error) from error


@contextmanager
def _one_error() -> Iterator[None]:
    """A nursery wraps what comes out of it into a group; whoever uses an engine sees the error itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        leaves = list(_leaves(group))
        if all(isinstance(leaf, EngineDead) for leaf in leaves):
            raise leaves[0] from leaves[0].__cause__
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from group.exceptions[0].__cause__
        raise


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
