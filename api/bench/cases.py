"""The cases that engines are compared in, as one command: each against every server given, in turn.

Imports trio through the load. What a case measures is one figure; where less is better (a gap), the ratio says so.
"""

import statistics
from collections.abc import Callable, Sequence
from functools import partial

import attrs
from rich.console import Console
from rich.table import Table

from ...engine.core.errors import ConfigurationError
from .interference import Interference, interfere
from .load import Pace, run_load
from .measure import Outcome, Summary, summarize
from .options import LengthOptions, OutputOptions, ServerOptions
from .prompts import Dataset, Maker, PromptOptions, draw_sessions
from .report import console_for, number, print_errors, ratio_text, write_figures
from .rounds import Ratio, in_turns, ratio
from .serving import DEFAULT_ROUNDS, bar
from .target import Target


@attrs.frozen(kw_only=True)
class Case:
    """A load, and the figure that is compared."""

    name: str
    title: str
    concurrency: int
    input_len: int
    output_len: int
    num_requests: int
    dataset: Dataset = "random"
    prefix_len: int = 0
    figure: str = "output tok/s"


CASES = (
    Case(name="streams-1", title="1 stream, 128/128", concurrency=1, input_len=128, output_len=128, num_requests=3),
    Case(name="streams-8", title="8 streams, 128/128", concurrency=8, input_len=128, output_len=128, num_requests=16),
    Case(
        name="streams-32", title="32 streams, 128/128", concurrency=32, input_len=128, output_len=128, num_requests=32
    ),
    Case(
        name="prefill",
        title="prefill: 4 streams, 1,024/16",
        concurrency=4,
        input_len=1024,
        output_len=16,
        num_requests=8,
        figure="total tok/s",
    ),
    Case(
        name="shared-prefix",
        title="shared prefix: 8 streams, 1,024 + 32/32",
        concurrency=8,
        input_len=32,
        output_len=32,
        num_requests=16,
        dataset="shared-prefix",
        prefix_len=1024,
    ),
)
INTERFERENCE = "interference"
INTERFERENCE_LEN = 4000
STREAM_LEN = 128

_FIGURES: dict[str, Callable[[Summary], float]] = {
    "output tok/s": lambda summary: summary.output_tokens_per_s,
    "total tok/s": lambda summary: summary.total_tokens_per_s,
}


@attrs.frozen(kw_only=True)
class Row:
    """A case's figures: each server's, round by round."""

    name: str
    title: str
    figure: str
    less_is_better: bool
    values: dict[str, list[float]]
    digits: int = 0


def chosen(names: Sequence[str]) -> list[str]:
    """The names of cases to run, in the table's order; all without a choice. Raises ConfigurationError."""
    known = [*(case.name for case in CASES), INTERFERENCE]
    for name in names:
        if name not in known:
            raise ConfigurationError(f"--only takes {', '.join(known)}; not {name!r}.")
    return [name for name in known if not names or name in names]


async def run_cases(
    servers: ServerOptions, lengths: LengthOptions, report: OutputOptions, *, only: Sequence[str], rounds: int | None
) -> int:
    """Run, print and write. Exit status 1 when a request failed."""
    names = chosen(only)
    targets = await servers.probe()
    maker = lengths.maker(targets)
    num_rounds = rounds or (DEFAULT_ROUNDS if len(targets) > 1 else 1)
    rows: list[Row] = []
    errors: dict[str, int] = {}
    with bar() as progress:
        task = progress.add_task("", total=len(names))
        for case in CASES:
            if case.name in names:
                progress.update(task, description=case.title)
                outcomes = await _run_case(case, targets, maker, num_rounds, lengths.seed, servers.timeout)
                rows.append(_row(case, outcomes))
                for summary in (summarize(found) for found in outcomes.values()):
                    for error, count in summary.errors.items():
                        errors[f"{case.name}: {error}"] = errors.get(f"{case.name}: {error}", 0) + count
                progress.advance(task)
        if INTERFERENCE in names:
            progress.update(task, description=INTERFERENCE)
            rows += await _run_interference(targets, maker, num_rounds, lengths.seed, servers.timeout)
    _print(console_for(report), targets, rows, errors)
    write_figures(
        report,
        {
            "command": "cases",
            "servers": {target.name: {"url": target.address.url, "model": target.model} for target in targets},
            "cases": {row.name: {"row": row, "ratio": _ratio(row)} for row in rows},
            "errors": errors,
        },
    )
    return int(bool(errors))


async def _run_case(
    case: Case, targets: list[Target], maker: Maker, num_rounds: int, seed: int, timeout_s: float
) -> dict[str, list[list[Outcome]]]:
    prompts = PromptOptions(
        dataset=case.dataset, input_len=case.input_len, output_len=case.output_len, prefix_len=case.prefix_len
    )

    async def run(target: Target, round: int) -> list[Outcome]:
        # The name is in the seed: no case finds the prompts of another in a cache.
        sessions = draw_sessions(prompts, maker, count=case.num_requests, seed=f"{seed}:{case.name}", round=round)
        return await run_load(target, sessions, Pace(concurrency=case.concurrency, timeout_s=timeout_s))

    return await in_turns(targets, num_rounds, run)


def _row(case: Case, outcomes: dict[str, list[list[Outcome]]]) -> Row:
    read = _FIGURES[case.figure]
    values = {name: [read(summarize([found])) for found in rounds] for name, rounds in outcomes.items()}
    return Row(name=case.name, title=case.title, figure=case.figure, less_is_better=False, values=values)


async def _run_interference(
    targets: list[Target], maker: Maker, num_rounds: int, seed: int, timeout_s: float
) -> list[Row]:
    async def run(target: Target, round: int) -> Interference:
        return await interfere(
            target, maker, prompt_len=INTERFERENCE_LEN, stream_len=STREAM_LEN, seed=seed + round, timeout_s=timeout_s
        )

    rounds = await in_turns(targets, num_rounds, run)
    title = f"1 stream while {INTERFERENCE_LEN:,} tokens arrive"
    make = partial(Row, title=title)
    return [
        make(
            name=INTERFERENCE,
            figure="largest gap, ms",
            less_is_better=True,
            values={name: [one.largest_gap_s * 1e3 for one in found] for name, found in rounds.items()},
        ),
        make(
            name=f"{INTERFERENCE}-speed",
            figure="prefill speed, beside / alone",
            less_is_better=False,
            values={name: [one.speed for one in found] for name, found in rounds.items()},
            digits=2,
        ),
    ]


def _ratio(row: Row) -> Ratio | None:
    return ratio(*row.values.values()) if len(row.values) == 2 else None


def _print(console: Console, targets: list[Target], rows: list[Row], errors: dict[str, int]) -> None:
    for target in targets:
        console.print(f"[bold]{target.name}[/bold] {target.address.url}  {target.model}", highlight=False)
    table = Table("case", "figure", *(target.name for target in targets), box=None, pad_edge=False, header_style="dim")
    if len(targets) == 2:
        table.add_column("A / B: median (lowest–highest round)")
    for column in table.columns[2 : 2 + len(targets)]:
        column.justify = "right"
    for row in rows:
        figures = [number(statistics.median(row.values[target.name]), row.digits) for target in targets]
        compared = _ratio(row)
        less = " (less is better)" if row.less_is_better else ""
        table.add_row(row.title, row.figure, *figures, *([ratio_text(compared) + less] if compared is not None else []))
    console.print(table, highlight=False)
    print_errors(console, errors)
