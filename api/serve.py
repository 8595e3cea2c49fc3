"""The composition: one `trio.run` that holds the engine, the HTTP server, the signals and the periodic log line.

    nursery                      connections outlive a dying engine by a moment, to say so to their clients
    ├── signals                  the first asks to stop, the second stops at once
    ├── server                   the listener and one task tree for each connection
    ├── throughput               the periodic line
    ├── lag                      how late the event loop is
    ├── background responses     each a request without a connection, and what lets old ones go
    ├── live view                asleep while nobody watches
    ├── spans                    where they are wanted: sends them, in a worker thread
    └── (body) open_engine       waits until it is told to stop, or the engine dies

Starting: the port is bound, the model loaded, and only then the port listens. Stopping: /health turns 503 and no
request is taken; running ones have `--shutdown-timeout` to finish; what is left gets a terminal event; the connections
close; the engine's scope is left. Every wait on this way has a bound.
"""

import gc
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING

import attrs
import trio

from ..engine.config import EngineConfig
from ..engine.core.errors import EngineDead, StartError, TrioletError
from ..engine.observer import Observer
from .config import ServerConfig
from .errors import ShuttingDown, leaf_error
from .lag import watch_lag
from .lifecycle import Lifecycle
from .live.hub import Hub
from .live.sampler import Sampler
from .live.tap import Tap
from .log import describe, log_throughput
from .metrics import Metrics
from .server import Server
from .service import Service
from .spans import Spans
from .trace import tracing

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from .responses.registry import Responses

log = logging.getLogger(__name__)

LAST_WORDS_S = 5.0
"""How long connections have to take their terminal event once everything ends: a stalled reader costs no more."""

OpenEngine = Callable[..., "AbstractAsyncContextManager[Engine]"]
Progress = Callable[[str, int, int | None], None]
"""Told, from any thread, what is being loaded, the bytes so far and the bytes in all."""


@attrs.define(kw_only=True)
class Run:
    """One life of the server: what its tasks share."""

    config: ServerConfig
    server: Server
    lifecycle: Lifecycle
    responses: "Responses | None" = None
    """Known once it has started."""
    stop: trio.Event = attrs.field(factory=trio.Event)
    hub: Hub | None = None
    """Who watches the live view; None until there is something to see."""
    spans: Spans | None = None
    """What sends spans, where they are wanted."""
    started: bool = False
    status: int = 0


async def serve(
    engine_config: EngineConfig,
    config: ServerConfig,
    *,
    open_engine: OpenEngine,
    version: str,
    loading: Callable[[], AbstractContextManager[Progress | None]] = nullcontext,
    signals: bool = True,
    announce: bool = True,
    task_status: trio.TaskStatus[Run] = trio.TASK_STATUS_IGNORED,
) -> int:
    """Serve until SIGTERM or SIGINT (or `Run.stop`), and return the exit status: 0, or 1 when the engine died.

    Raises StartError when it cannot start. `open_engine` is the engine's scope, given so that it can be another one;
    `loading` shows its progress, until it is up; `announce`: one line on stdout says where it listens.
    """
    log.info("configuration: %s", describe(engine_config, config))
    metrics = Metrics(config.metrics_prefix)
    server = Server(config)
    run = Run(config=config, server=server, lifecycle=Lifecycle())
    try:
        async with trio.open_nursery() as nursery:
            if signals:
                await nursery.start(_watch_signals, run, nursery.cancel_scope)
            shown, traced = ExitStack(), ExitStack()
            try:
                progress = shown.enter_context(loading())
                tap = Tap(_with_spans(run, traced.enter_context(tracing(config.trace, metrics)), version))
                async with open_engine(engine_config, observer=tap, progress=progress) as engine:
                    shown.close()
                    sampler = Sampler(engine, tap, shows_text=config.shows_prompts, clock=trio.current_time)
                    run.hub = Hub(sampler)
                    await _start(run, engine, metrics, nursery, version)
                    if announce:
                        _announce(run)
                    task_status.started(run)
                    await run.stop.wait()
                    await _drain(run)
                    await _say_goodbye(run, ShuttingDown("The server is shutting down."))
            except Exception as error:
                await _fail(run, error)
            finally:
                shown.close()
                traced.close()
            if run.spans is not None:
                await run.spans.close()
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        known = leaf_error(group)
        if not isinstance(known, StartError):
            raise
        raise known from None
    finally:
        server.close()
        if run.started:
            gc.unfreeze()  # what was the engine's can be collected, where the process goes on
    return run.status


def _with_spans(run: Run, observer: Observer, version: str) -> Observer:
    """Raises ConfigurationError where OpenTelemetry is wanted and not installed."""
    if run.config.otlp_traces_endpoint is None:
        return observer
    run.spans = Spans(run.config.otlp_traces_endpoint, observer, version=version)
    return run.spans


async def _start(run: Run, engine: "Engine", metrics: Metrics, nursery: trio.Nursery, version: str) -> None:
    from .app import build_app
    from .cors import Cors
    from .gate import Gate
    from .generate import GenerateRoute
    from .generating import GENERATING
    from .live.route import PATH, LiveRoute

    if run.hub is None:
        raise AssertionError("there is nothing to see yet")
    service = Service(
        engine=engine,
        config=run.config,
        lifecycle=run.lifecycle,
        metrics=metrics,
        version=version,
        background=nursery,
    )
    run.responses = service.responses
    metrics.watch(engine, service.model_names[0], service.responses)
    gate = Gate(
        run.config,
        routes={path: GenerateRoute(service, route.make_job, route.dialect) for path, route in GENERATING.items()},
        streams={PATH: LiveRoute(run.hub, ping_interval=run.config.ping_interval)},
        rest=build_app(service),  # type: ignore[arg-type]
        entrance=service.entrance,
        refusal=service.refusal,
    )
    app = Cors(run.config, gate) if run.config.allowed_origins else gate
    url = await nursery.start(run.server.run, app, gate.door())
    if run.spans is not None:
        run.spans.model_name = service.model_names[0]
        nursery.start_soon(run.spans.run)
    nursery.start_soon(log_throughput, engine.stats)
    nursery.start_soon(watch_lag, metrics.lagged)
    nursery.start_soon(service.responses.forget_old)
    nursery.start_soon(run.hub.run)
    run.started = True
    gc.freeze()  # Modules and tables stay anyway; a full collection that looks at them stops every stream for 0.1 s.
    log.info("serving %s on %s", ", ".join(service.model_names), url)
    if not run.config.uds:
        log.info("a chat, and the engine from inside: %s/ui", url + run.config.root_path)


def _announce(run: Run) -> None:
    url = run.server.url
    print(f"Triolet is ready: {url if run.config.uds else url + '/v1'}", file=sys.stdout, flush=True)


async def _watch_signals(
    run: Run, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
        task_status.started()
        async for number in received:
            name = signal.Signals(number).name
            if run.stop.is_set() or not run.started:
                log.warning("%s: stopping at once", name)
                run.status = 0 if run.started else 128 + number
                run.server.cut()
                scope.cancel()
                break
            log.info("%s: stopping; a second signal stops at once", name)
            run.lifecycle.drain()
            run.stop.set()


async def _drain(run: Run) -> None:
    """Let running requests finish, as long as they may."""
    run.lifecycle.drain()
    num_open = len(run.lifecycle.open_requests)
    if num_open:
        log.info("waiting up to %g s for %d running requests", run.config.shutdown_timeout, num_open)
        with trio.move_on_after(run.config.shutdown_timeout):
            await run.lifecycle.wait_idle()


async def _say_goodbye(run: Run, error: TrioletError) -> None:
    """Every open request hears `error`; then the connections close, within a bound."""
    num_open = run.lifecycle.interrupt_all(error)
    if run.hub is not None:
        run.hub.close()
    if num_open:
        log.warning("%d requests were cut short: %s", num_open, error.message)
    await run.server.stop(LAST_WORDS_S)
    await run.server.wait_stopped()


async def _fail(run: Run, error: Exception) -> None:
    """The engine's scope has ended with an error: before the start it is the caller's, afterwards the clients'."""
    if isinstance(error, ExceptionGroup):
        error = leaf_error(error) or error
    if not run.started:
        raise error
    run.status = 1
    reason = error.message if isinstance(error, TrioletError) else "an error inside the engine"
    log.critical("the engine has died: %s", reason, exc_info=None if isinstance(error, TrioletError) else error)
    dead = error if isinstance(error, EngineDead) else EngineDead("The engine has stopped because of an error.")
    run.lifecycle.close(dead)
    await _say_goodbye(run, dead)
