"""The map as text: bounded, and its differences bring one to the other."""

from hypothesis import given
from hypothesis import strategies as st

from triolet.api.live.cells import CELLS_MAX, STATES, apply_runs, blocks_per_cell, cell_text, changed_runs
from triolet.kvcache.view import CACHED, FREE, LIMBO, OWNED, SHARED


def test_a_block_is_a_digit() -> None:
    """Its state, and an owner's colour."""
    assert cell_text(bytearray([FREE, CACHED, LIMBO, SHARED, OWNED, OWNED + 10]), 1) == "01234e"


def test_several_blocks_are_five_digits() -> None:
    """How many are in each state; the last cell may be smaller; colours are not told apart."""
    assert cell_text(bytearray([FREE, FREE, OWNED + 3, OWNED, SHARED]), 3) == "20001" + "00011"
    many = bytearray([FREE] * 99 + [LIMBO])
    assert cell_text(many, 100) == "f0100"


def test_a_map_has_a_bound() -> None:
    """Whatever the pool is, no more than CELLS_MAX cells."""
    for num_blocks in (1, CELLS_MAX, CELLS_MAX + 1, 100_000, 9_999_999):
        per_cell = blocks_per_cell(num_blocks)
        assert -(-num_blocks // per_cell) <= CELLS_MAX
    assert blocks_per_cell(CELLS_MAX) == 1
    assert len(cell_text(bytearray(100_000), blocks_per_cell(100_000))) <= CELLS_MAX * STATES


cells = st.integers(1, 300).flatmap(
    lambda size: st.tuples(
        st.lists(st.integers(0, 14), min_size=size, max_size=size),
        st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, 14)), max_size=20),
    )
)


@given(cells, st.integers(1, 20))
def test_the_changes_lead_from_one_map_to_the_next(drawn: tuple[list[int], list[tuple[int, int]]], each: int) -> None:
    """Applied to the old map they give the new one, and are never longer than it."""
    old = bytearray(drawn[0])
    new = bytearray(old)
    for place, code in drawn[1]:
        new[place] = code
    width = 1 if each == 1 else STATES
    before, after = cell_text(old, each), cell_text(new, each)
    runs = changed_runs(before, after, width)
    if runs is None:
        return
    assert apply_runs(before, runs, width) == after
    assert sum(len(text) for _, text in runs) <= len(after)
    assert [first for first, _ in runs] == sorted({first for first, _ in runs})


def test_where_all_has_changed_the_map_is_sent_whole() -> None:
    """Runs that say more than the map does are not made."""
    assert changed_runs("0" * 100, "01" * 50, 1) is None
    assert changed_runs("0" * 100, "0" * 100, 1) == ()
    assert changed_runs("0" * 100, "0" * 60 + "111" + "0" * 37, 1) == ((60, "111"),)
