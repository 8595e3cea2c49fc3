"""`triolet bench …`: the commands, their flags, and nothing heavy until one runs."""

from functools import partial
from typing import Annotated

from cyclopts import App, Group, Parameter

from ...engine.config import EngineConfig
from ...engine.core.errors import ConfigurationError
from .options import (
    BatchOptions,
    CancelOptions,
    LengthOptions,
    LoadOptions,
    OutputOptions,
    ReportOptions,
    ServerOptions,
    StartupOptions,
    ThroughputOptions,
)

app = App(name="bench", help="Measure a server, or an engine without one. docs/benchmarks.md says how to compare.")

_SERVERS = Group.create_ordered("Servers")
_LOAD = Group.create_ordered("Load")
_PROMPTS = Group.create_ordered("Prompts")
_REPORT = Group.create_ordered("Report")
_ENGINE = Group.create_ordered("Engine")

Servers = Annotated[ServerOptions, Parameter(name="*", group=_SERVERS)]
Lengths = Annotated[LengthOptions, Parameter(name="*", group=_PROMPTS)]
Load = Annotated[LoadOptions, Parameter(name="*", group=_LOAD)]
Report = Annotated[ReportOptions, Parameter(name="*", group=_REPORT)]

Output = Annotated[OutputOptions, Parameter(name="*", group=_REPORT)]
Batches = Annotated[BatchOptions, Parameter(name="*", group=_LOAD)]
Cancels = Annotated[CancelOptions, Parameter(name="*", group=_LOAD)]
Requests = Annotated[ThroughputOptions, Parameter(name="*", group=_LOAD)]
Startup = Annotated[StartupOptions, Parameter(name="*", group=_SERVERS)]
Engine = Annotated[EngineConfig, Parameter(name="*", group=_ENGINE)]

SERVERS = ServerOptions()
LENGTHS = LengthOptions()
LOAD = LoadOptions()
REPORT = ReportOptions()
OUTPUT = OutputOptions()
BATCHES = BatchOptions()
CANCELS = CancelOptions()
REQUESTS = ThroughputOptions()
STARTUP = StartupOptions()
ENGINE = EngineConfig()


@app.command
def serve(*, servers: Servers = SERVERS, load: Load = LOAD, lengths: Lengths = LENGTHS, report: Report = REPORT) -> int:
    """Load a server of OpenAI's protocol with streamed requests; times, throughput, and ratios of two servers."""
    import trio

    from .serving import serve

    return trio.run(serve, servers, lengths, load, report)


@app.command
def cases(
    *,
    servers: Servers = SERVERS,
    only: Annotated[tuple[str, ...], Parameter(group=_LOAD, negative=(), consume_multiple=True)] = (),
    rounds: Annotated[int | None, Parameter(group=_LOAD)] = None,
    lengths: Lengths = LENGTHS,
    report: Output = OUTPUT,
) -> int:
    """The cases that engines are compared in, all of them, against one server or two in turn.

    Parameters
    ----------
    only
        Some of streams-1, streams-8, streams-32, prefill, shared-prefix, interference; without the flag all.
    rounds
        How often each is done; 1, or 3 with two servers.
    """
    import trio

    from .cases import run_cases

    if rounds is not None and rounds < 1:
        raise ConfigurationError(f"--rounds must be at least 1, not {rounds}.")
    return trio.run(partial(run_cases, servers, lengths, report, only=only, rounds=rounds))


@app.command
def cancel(
    *, servers: Servers = SERVERS, cancels: Cancels = CANCELS, lengths: Lengths = LENGTHS, report: Output = OUTPUT
) -> int:
    """What a server goes on doing for a client that has left: tokens, and time until its slot serves somebody else."""
    import trio

    from .cancelling import cancel

    return trio.run(cancel, servers, cancels, lengths, report)


@app.command
def throughput(*, requests: Requests = REQUESTS, engine: Engine = ENGINE, report: Output = OUTPUT) -> int:
    """Tokens per second of the engine without HTTP: many requests at once."""
    import trio

    from .offline import throughput

    return trio.run(throughput, engine, requests, report)


@app.command
def latency(*, batches: Batches = BATCHES, engine: Engine = ENGINE, report: Output = OUTPUT) -> int:
    """How long the engine takes for one batch, without HTTP."""
    import trio

    from .offline import latency

    return trio.run(latency, engine, batches, report)


@app.command
def startup(
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
    startup: Startup = STARTUP,
    report: Output = OUTPUT,
) -> int:
    """How long a server takes from its start to its first answer, and the memory it then holds.

    Parameters
    ----------
    arguments
        After --: what `triolet serve` is started with.
    """
    import trio

    from .startup import startup as run

    return trio.run(run, startup, report, arguments)
