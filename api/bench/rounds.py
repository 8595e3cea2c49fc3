"""Servers in turn: every round runs the same load against each, and who begins alternates.

Imports trio through the load. Two servers on one machine share its mood (clocks, neighbours): a ratio within a round
says more than two figures from two runs.
"""

import statistics
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import attrs

from .measure import Goals, Outcome, Summary, summarize
from .target import Target

T = TypeVar("T")


async def in_turns(
    targets: Sequence[Target], num_rounds: int, run: Callable[[Target, int], Awaitable[T]]
) -> dict[str, list[T]]:
    """`run(target, round)` for each: A B, B A, A B, … The results by the targets' names."""
    results: dict[str, list[T]] = {target.name: [] for target in targets}
    for round in range(num_rounds):
        for target in targets if round % 2 == 0 else reversed(targets):
            results[target.name].append(await run(target, round))
    return results


@attrs.frozen(kw_only=True)
class Ratio:
    """A over B, round by round: above 1, A has more. NaN-free: rounds in which B had nothing are left out."""

    median: float | None
    low: float | None
    high: float | None


def ratio(first: Sequence[float], second: Sequence[float]) -> Ratio:
    """Of the values of the rounds."""
    found = sorted(a / b for a, b in zip(first, second, strict=True) if b > 0 and a == a)
    if not found:
        return Ratio(median=None, low=None, high=None)
    return Ratio(median=statistics.median(found), low=found[0], high=found[-1])


FIGURES: dict[str, Callable[[Summary], float]] = {
    "output tok/s": lambda summary: summary.output_tokens_per_s,
    "total tok/s": lambda summary: summary.total_tokens_per_s,
    "TTFT p50": lambda summary: summary.ttft_ms.p50,
    "TPOT p50": lambda summary: summary.tpot_ms.p50,
    "ITL p50": lambda summary: summary.itl_ms.p50,
    "ITL p99": lambda summary: summary.itl_ms.p99,
    "E2E p50": lambda summary: summary.e2e_ms.p50,
}
"""What is compared."""


def ratios(rounds: dict[str, list[list[Outcome]]], goals: Goals | None = None) -> dict[str, Ratio]:
    """A over B for each of FIGURES; empty with one server."""
    if len(rounds) < 2:
        return {}
    first, second = ([summarize([outcomes], goals) for outcomes in rounds[name]] for name in rounds)
    return {name: ratio([read(s) for s in first], [read(s) for s in second]) for name, read in FIGURES.items()}
