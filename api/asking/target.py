"""Whom a command asks: a server at a URL, or our own around an engine in this process, on a socket file.

The local server has everything that `triolet serve` has but a port: only this user can reach its file, and it goes with
the scope. Imports trio, `api/serve.py` and the engine's portal.
"""

import os
import signal
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial

import trio

from ... import __version__
from ...engine.config import EngineConfig
from ...engine.core.errors import ConfigurationError, EngineDead, StartError
from ...engine.device import Portal
from ...engine.open import open_engine
from ...engine.progress import loading_bars
from ..config import ServerConfig
from ..errors import leaf_error
from ..serve import OpenEngine, Run, serve
from .client import Client
from .exchange import Place
from .options import TargetOptions

SOCKET_PATH_BYTES_MAX = 100
"""The kernel takes 108."""

Opener = Callable[[], AbstractAsyncContextManager[Client]]


@contextmanager
def reach(
    options: TargetOptions,
    engine: EngineConfig,
    *,
    served_names: tuple[str, ...] = (),
    open_engine: OpenEngine = open_engine,
) -> Iterator[Portal[Client]]:
    """The server, to be called from this thread: Ctrl-C cancels the call that it interrupts, and that alone.

    Raises StartError.
    """
    opener: Opener = partial(open_local, engine, served_names=served_names, open_engine=open_engine)
    if options.url is not None:
        if engine != EngineConfig():
            raise ConfigurationError("--url asks a server that runs: leave MODEL and the engine's flags to it.")
        opener = partial(_open_remote, Place.at(options.url, api_key=options.api_key))
    with _ended_by_signals():
        portal = Portal(opener)
        try:
            yield portal
        finally:
            portal.close()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """What would kill the process raises SystemExit instead, with a shell's status: the request's connection is closed,
    and the socket file goes. In the main thread; elsewhere nothing changes."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@asynccontextmanager
async def _open_remote(place: Place) -> AsyncIterator[Client]:
    yield Client(place)


@asynccontextmanager
async def open_local(
    engine: EngineConfig,
    *,
    served_names: tuple[str, ...] = (),
    open_engine: OpenEngine = open_engine,
) -> AsyncIterator[Client]:
    """A client of a server in this process. Raises StartError; the scope ends with EngineDead when the engine dies."""
    try:
        with tempfile.TemporaryDirectory(prefix="triolet-", dir=_folder()) as folder:
            path = os.path.join(folder, "socket")
            server = ServerConfig(uds=path, served_model_name=served_names, shutdown_timeout=0.0, http2=False)
            async with trio.open_nursery() as nursery:
                run: Run = await nursery.start(_serve, engine, server, open_engine)
                yield Client(Place(name="The engine", uds=path))
                run.stop.set()
    except BaseExceptionGroup as group:
        known = leaf_error(group)
        if isinstance(known, StartError | EngineDead):
            raise known from None
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from group.exceptions[0].__cause__
        raise


def _folder() -> str | None:
    """Where a socket file may be made: the usual folder for what is temporary, unless its name is too long."""
    return None if len(os.fsencode(tempfile.gettempdir())) + 32 < SOCKET_PATH_BYTES_MAX else "/tmp"


async def _serve(
    engine: EngineConfig, server: ServerConfig, open_engine: OpenEngine, *, task_status: trio.TaskStatus[Run]
) -> None:
    status = await serve(
        engine,
        server,
        open_engine=open_engine,
        version=__version__,
        loading=loading_bars,
        signals=False,
        announce=False,
        task_status=task_status,
    )
    if status:
        raise EngineDead("The engine has stopped because of an error.")
