"""The map of the pool as text: a cell for a block, or for several where they are many; and what changed in it.

Pure. No more than CELLS_MAX cells, so that the largest event has a bound whatever the pool is.
"""

from collections.abc import Sequence

CELLS_MAX = 4096
"""64 by 64: more are no longer seen apart, and a whole map stays under 20 KiB."""

STATES = 5
"""free, cached, limbo, shared, owned: as in kvcache/view.py, whatever the owner's colour is."""

_DIGITS = b"0123456789abcdef"
_WITHOUT_COLOURS = bytes(min(code, STATES - 1) for code in range(256))
_SLICE = 64

Runs = tuple[tuple[int, str], ...]


def blocks_per_cell(num_blocks: int) -> int:
    return -(-num_blocks // CELLS_MAX)


def cell_text(cells: bytes | bytearray, per_cell: int) -> str:
    """See `wire.py` for what a cell looks like."""
    if per_cell == 1:
        return cells.translate(_DIGITS.ljust(256, b"f")).decode("ascii")
    plain = bytes(cells.translate(_WITHOUT_COLOURS))
    known: dict[bytes, bytes] = {}  # most cells are like another one
    parts = [plain[start : start + per_cell] for start in range(0, len(plain), per_cell)]
    return b"".join([known.get(part) or known.setdefault(part, _shares(part)) for part in parts]).decode("ascii")


def _shares(part: bytes) -> bytes:
    counts = [part.count(state) for state in range(STATES)]
    total = len(part)
    if total > 15:
        # Rounded up: what is there at all is seen.
        counts = [-(-15 * count // total) for count in counts]
    return bytes(map(_DIGITS.__getitem__, counts))


def changed_runs(old: str, new: str, width: int) -> Runs | None:
    """Runs of cells that differ, `width` digits each; None where the whole map is the shorter message."""
    if old == new:
        return ()
    runs: list[tuple[int, str]] = []
    for start in range(0, len(new), _SLICE * width):
        part = new[start : start + _SLICE * width]
        if part != old[start : start + _SLICE * width]:
            _note(runs, old[start : start + _SLICE * width], part, start // width, width)
    if sum(len(text) + 12 for _, text in runs) > len(new):
        return None
    return tuple(runs)


def _note(runs: list[tuple[int, str]], old: str, new: str, first: int, width: int) -> None:
    """The cells of one slice; runs that touch become one."""
    for place in range(0, len(new), width):
        cell = new[place : place + width]
        if cell == old[place : place + width]:
            continue
        number = first + place // width
        if runs and runs[-1][0] + len(runs[-1][1]) // width == number:
            runs[-1] = (runs[-1][0], runs[-1][1] + cell)
        else:
            runs.append((number, cell))


def apply_runs(text: str, runs: Sequence[tuple[int, str]], width: int) -> str:
    """What whoever watches does: the inverse of `changed_runs`, for tests."""
    for first, cells in runs:
        start = first * width
        text = text[:start] + cells + text[start + len(cells) :]
    return text
