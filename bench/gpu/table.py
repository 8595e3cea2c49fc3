"""Rows of the GPU bench's table, and how time is taken on a device."""

import statistics
import time
from collections.abc import Callable

import attrs
import torch


@attrs.frozen(kw_only=True)
class Row:
    """One line. `ok` False is a failure; None: it is a figure without a goal."""

    what: str
    value: str
    goal: str = ""
    ok: bool | None = None


def ratio(what: str, value: float, *, goal: float, detail: str) -> Row:
    """A share of what the card can do, with its goal."""
    return Row(what=what, value=f"{value:.0%}  {detail}", goal=f"≥ {goal:.0%}", ok=value >= goal)


def show(section: str, rows: list[Row]) -> None:
    """Print a section as soon as it is there."""
    print(f"\n{section}", flush=True)
    for row in rows:
        mark = {True: "ok", False: "MISSED", None: ""}[row.ok]
        print(f"  {row.what:<44} {row.value:<40} {row.goal:<8} {mark}".rstrip(), flush=True)


def seconds_of(run: Callable[[], object], device: torch.device, *, times: int) -> float:
    """The median time of `run`, after two that do not count."""
    for _ in range(2):
        run()
    if device.type != "cuda":
        return statistics.median(_host_seconds(run) for _ in range(times))
    pairs = []
    for _ in range(times):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize(device)
    return statistics.median(start.elapsed_time(end) for start, end in pairs) / 1000


def _host_seconds(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
