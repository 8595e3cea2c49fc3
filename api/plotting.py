"""Plots as files, for the commands that take `--plot`. matplotlib is imported when one is made, and need not be there.

Figures are drawn without pyplot: nothing global, no window, the same on every machine.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.core.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MISSING = "--plot needs matplotlib, which is not installed: pip install 'triolet[plot]'."
COLUMNS = 2
PANEL_INCHES = (6.0, 3.2)


def check_plot(path: Path | None) -> None:
    """Before anything is measured: can a plot be written there? Raises ConfigurationError."""
    if path is None:
        return
    _import()
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ConfigurationError(f"--plot takes a file named .png, .svg or .pdf, not {path}.")
    if not path.parent.is_dir():
        raise ConfigurationError(f"--plot {path}: there is no folder {path.parent}.")


def panels(titles: Sequence[str], heading: str) -> "tuple[Figure, list[Axes]]":
    """An empty figure with a panel for each title. Raises ConfigurationError without matplotlib."""
    _import()
    from matplotlib.figure import Figure

    num_rows = -(-len(titles) // COLUMNS)
    figure = Figure(figsize=(PANEL_INCHES[0] * COLUMNS, PANEL_INCHES[1] * num_rows), layout="constrained")
    figure.suptitle(heading)
    axes = [figure.add_subplot(num_rows, COLUMNS, index) for index in range(1, len(titles) + 1)]
    for panel, title in zip(axes, titles, strict=True):
        panel.set_title(title, fontsize="medium")
        panel.grid(alpha=0.3)
    return figure, axes


def draw_distribution(panel: "Axes", seconds: Sequence[float], label: str | None = None) -> None:
    """The share of values up to each one, in milliseconds: percentiles can be read off."""
    ranked = sorted(value * 1e3 for value in seconds)
    shares = [100 * (rank + 1) / len(ranked) for rank in range(len(ranked))]
    panel.step(ranked, shares, where="post", label=label)
    panel.set_xlabel("ms")
    panel.set_ylabel("% of all, at most")
    panel.set_ylim(0, 100)


def save(figure: "Figure", path: Path) -> None:
    """Write it. Raises ConfigurationError."""
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise ConfigurationError(f"--plot {path}: {error.strerror}.") from None


def _import() -> None:
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ConfigurationError(MISSING) from None
