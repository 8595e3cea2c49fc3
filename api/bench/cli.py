"""`triolet bench …`: the commands, their flags, and nothing heavy until one runs."""

from typing import Annotated

from cyclopts import App, Group, Parameter

from .options import LengthOptions, LoadOptions, ReportOptions, ServerOptions

app = App(name="bench", help="Measure a server, or an engine without one. docs/benchmarks.md says how to compare.")

_SERVERS = Group.create_ordered("Servers")
_LOAD = Group.create_ordered("Load")
_PROMPTS = Group.create_ordered("Prompts")
_REPORT = Group.create_ordered("Report")

Servers = Annotated[ServerOptions, Parameter(name="*", group=_SERVERS)]
Lengths = Annotated[LengthOptions, Parameter(name="*", group=_PROMPTS)]
Load = Annotated[LoadOptions, Parameter(name="*", group=_LOAD)]
Report = Annotated[ReportOptions, Parameter(name="*", group=_REPORT)]

SERVERS = ServerOptions()
LENGTHS = LengthOptions()
LOAD = LoadOptions()
REPORT = ReportOptions()


@app.command
def serve(*, servers: Servers = SERVERS, load: Load = LOAD, lengths: Lengths = LENGTHS, report: Report = REPORT) -> int:
    """Load a server of OpenAI's protocol with streamed requests; times, throughput, and ratios of two servers."""
    import trio

    from .serving import serve

    return trio.run(serve, servers, lengths, load, report)
