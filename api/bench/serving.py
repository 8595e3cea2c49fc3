"""`triolet bench serve`: load for one server, or for two in turn.

Imports trio. Exit status 1 when a request failed.
"""

from functools import partial
from typing import Any

import attrs
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..plotting import check_plot
from .interference import Interference, interfere, report_interference
from .load import Pace, run_load
from .measure import Outcome, summarize
from .options import LengthOptions, LoadOptions, ReportOptions, ServerOptions
from .plot import plot_load
from .prompts import Maker, draw_sessions
from .report import console_for, print_summaries, write_figures
from .rounds import in_turns, ratios
from .target import Target

DEFAULT_CONCURRENCY = 8
DEFAULT_ROUNDS = 3


async def serve(servers: ServerOptions, lengths: LengthOptions, load: LoadOptions, report: ReportOptions) -> int:
    """Run and report. Raises StartError for flags and servers that cannot be used."""
    goals = report.goals
    check_plot(report.plot)
    targets = await servers.probe()
    maker = lengths.maker(targets)
    if load.interference is not None:
        return await _interference(targets, maker, servers, lengths, load, report)
    num_rounds = load.rounds or (DEFAULT_ROUNDS if len(targets) > 1 else 1)
    concurrency = load.concurrency or (None if load.request_rate else DEFAULT_CONCURRENCY)
    sessions = [
        draw_sessions(load.prompts, maker, count=load.num_requests, seed=lengths.seed, round=round)
        for round in range(num_rounds)
    ]

    with bar() as progress:
        task = progress.add_task("", total=num_rounds * len(targets) * load.num_requests)

        async def run(target: Target, round: int) -> list[Outcome]:
            progress.update(task, description=f"{target.name}, round {round + 1}")
            pace = Pace(
                concurrency=concurrency,
                request_rate=load.request_rate,
                seed=lengths.seed + round,
                timeout_s=servers.timeout,
            )
            return await run_load(target, sessions[round], pace, on_done=partial(progress.advance, task))

        rounds = await in_turns(targets, num_rounds, run)

    summaries = {name: summarize(outcomes, goals) for name, outcomes in rounds.items()}
    compared = ratios(rounds, goals)
    print_summaries(console_for(report), targets, summaries, compared)
    if report.plot is not None:
        plot_load(rounds, targets, report.plot, load.title)
    write_figures(
        report,
        {
            "command": "serve",
            "settings": {**settings(lengths), **settings(load), "rounds": num_rounds, "concurrency": concurrency},
            "servers": {
                target.name: {
                    "url": target.address.url,
                    "model": target.model,
                    "summary": summaries[target.name],
                    "rounds": [summarize([outcomes], goals) for outcomes in rounds[target.name]],
                }
                for target in targets
            },
            "ratios": compared,
        },
    )
    return int(any(summary.num_failed for summary in summaries.values()))


async def _interference(
    targets: list[Target],
    maker: Maker,
    servers: ServerOptions,
    lengths: LengthOptions,
    load: LoadOptions,
    report: ReportOptions,
) -> int:
    async def run(target: Target, round: int) -> Interference:
        return await interfere(
            target,
            maker,
            prompt_len=load.interference or 0,
            stream_len=load.input_len,
            seed=lengths.seed + round,
            timeout_s=servers.timeout,
        )

    rounds = await in_turns(targets, load.rounds or DEFAULT_ROUNDS, run)
    console = console_for(report)
    for target in targets:
        console.print(f"[bold]{target.name}[/bold] {target.address.url}  {target.model}", highlight=False)
    figures = report_interference(console, targets, rounds)
    urls = {target.name: target.address.url for target in targets}
    write_figures(report, {"command": "serve --interference", "servers": urls, "figures": figures})
    return 0


def settings(options: Any) -> dict[str, Any]:
    """Flags for a report."""
    return attrs.asdict(options)


def bar() -> Progress:
    """A progress bar on stderr, drawn twice a second: it must cost nothing beside what is measured."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        refresh_per_second=2,
        transient=True,
    )
