"""What a benchmark prints: a table for people on stdout, the same figures as JSON in a file.

Imports rich, when it prints.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import msgspec
from rich.console import Console
from rich.table import Table

from ...engine.core.errors import ConfigurationError
from .measure import Spread, Summary
from .options import OutputOptions
from .rounds import Ratio
from .target import Target

MAX_ERRORS = 5


def number(value: float | None, digits: int = 1) -> str:
    """A figure, or a dash where there is none."""
    return "–" if value is None or math.isnan(value) else f"{value:,.{digits}f}"


def ratio_text(ratio: Ratio | None) -> str:
    """`1.32 × (1.25–1.40)`."""
    if ratio is None or ratio.median is None:
        return "–"
    return f"{number(ratio.median, 2)} × ({number(ratio.low, 2)}–{number(ratio.high, 2)})"


def _spread(spread: Spread) -> list[str]:
    return [number(value) for value in (spread.p50, spread.p90, spread.p99, spread.max)]


def print_summaries(
    console: Console, targets: Sequence[Target], summaries: dict[str, Summary], ratios: dict[str, Ratio]
) -> None:
    """One table with a block for each server, the ratios below, then what went wrong."""
    for target in targets:
        summary = summaries[target.name]
        console.print(f"[bold]{target.name}[/bold] {target.address.url}  {target.model}", highlight=False)
        counts = Table(box=None, pad_edge=False, show_header=False)
        uncounted = f" ({summary.num_uncounted} counted by events)" if summary.num_uncounted else ""
        counts.add_row("requests", f"{summary.num_completed} completed, {summary.num_failed} failed")
        counts.add_row(
            "tokens", f"{summary.num_prompt_tokens:,} prompt, {summary.num_output_tokens:,} output{uncounted}"
        )
        counts.add_row("duration", f"{summary.duration_s:.2f} s")
        counts.add_row("output tok/s", number(summary.output_tokens_per_s))
        counts.add_row("total tok/s", number(summary.total_tokens_per_s))
        counts.add_row("requests/s", number(summary.requests_per_s, 2))
        if summary.goodput_requests_per_s is not None:
            counts.add_row("goodput, requests/s", number(summary.goodput_requests_per_s, 2))
        console.print(counts, highlight=False)
        times = Table("ms", *("p50", "p90", "p99", "max"), box=None, pad_edge=False, header_style="dim")
        for column in times.columns[1:]:
            column.justify = "right"
        for name in ("ttft", "tpot", "itl", "e2e"):
            times.add_row(name.upper(), *_spread(getattr(summary, f"{name}_ms")))
        console.print(times, highlight=False)
        print_errors(console, summary.errors)
        console.print()
    if ratios:
        table = Table("A / B", "median (lowest–highest round)", box=None, pad_edge=False, header_style="dim")
        for name, ratio in ratios.items():
            table.add_row(name, ratio_text(ratio))
        console.print(table, highlight=False)


def print_errors(console: Console, errors: dict[str, int]) -> None:
    """The errors, the commonest first."""
    for message, count in list(errors.items())[:MAX_ERRORS]:
        console.print(f"failed {count} ×: {message}", style="red", markup=False, highlight=False)
    if len(errors) > MAX_ERRORS:
        console.print(f"… and {len(errors) - MAX_ERRORS} other errors", style="red", highlight=False)


def console_for(report: OutputOptions) -> Console:
    """Where tables go: nowhere, if JSON was asked for."""
    return Console(quiet=report.json)


def write_figures(report: OutputOptions, figures: dict[str, Any]) -> None:
    """As JSON, into a file and onto stdout, where that was asked for; NaN becomes null. Raises ConfigurationError."""
    if report.output is None and not report.json:
        return
    plain = {key: _plain(value) for key, value in figures.items()}
    text = msgspec.json.format(msgspec.json.encode(plain), indent=2)
    if report.json:
        print(text.decode())
    if report.output is not None:
        try:
            report.output.write_bytes(text + b"\n")
        except OSError as error:
            raise ConfigurationError(f"--output {report.output}: {error.strerror}.") from None


def _plain(value: Any) -> Any:
    """attrs objects as dicts, NaN as None."""
    if attrs.has(type(value)):
        return {field.name: _plain(getattr(value, field.name)) for field in attrs.fields(type(value)) if field.repr}
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
