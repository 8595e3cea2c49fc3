"""Progress on a terminal: bars for loading a model and for a batch of requests.

Imports rich, on use. It draws on standard error, and only where that is a terminal; it may be told things from any
thread.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn


COUNTED = ("Recording graphs",)
"""What is counted in pieces, where all else is in bytes."""


def _progress(*columns: "ProgressColumn | str") -> "Progress":
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(*columns, console=console, disable=not console.is_terminal)


@contextmanager
def loading_bars() -> Iterator[Callable[[str, int, int | None], None]]:
    """A function to be given as `progress` of `open_engine`: one bar for each thing that is being fetched or loaded."""
    from rich.progress import BarColumn, DownloadColumn, Task, TextColumn, TransferSpeedColumn
    from rich.text import Text

    class Amount(DownloadColumn):
        def render(self, task: Task) -> Text:
            if task.description not in COUNTED:
                return super().render(task)
            return Text(f"{task.completed:.0f} of {task.total or 0:.0f}")

    class Speed(TransferSpeedColumn):
        def render(self, task: Task) -> Text:
            return super().render(task) if task.description not in COUNTED else Text("")

    bars: dict[str, int] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), Amount(), Speed())
    with _progress(*columns) as progress:

        def report(what: str, done: int, total: int | None) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what, total=total)
            progress.update(bars[what], completed=done, total=total)  # type: ignore[arg-type]

        yield report


@contextmanager
def request_bar(num_requests: int, *, show: bool) -> Iterator[Callable[[int], None]]:
    """A function to be called with the tokens of each request that has ended."""
    if not show:
        yield lambda num_tokens: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("Requests"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[tokens]} tokens"),
    )
    with _progress(*columns) as progress:
        bar = progress.add_task("", total=num_requests, tokens=0)
        num_tokens = 0

        def ended(tokens: int) -> None:
            nonlocal num_tokens
            num_tokens += tokens
            progress.update(bar, advance=1, tokens=num_tokens)

        yield ended
