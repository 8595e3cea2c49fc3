"""The kept batch of a device that is ahead of the host: it knows of each sequence where it stands, not what it says.

Imports the batch. Tokens that steps under way are sampling are known on the device alone; everything else that a step
needs follows from the plans.
"""

import attrs
import numpy as np

from ...engine.core.ids import SequenceId
from ...engine.core.plan import StepPlan
from ..batch import KeptBatch
from ..sampling import BoolArray, Float64Array, Int64Array


@attrs.frozen(kw_only=True, eq=False)
class RowChanges:
    """What a plan changed in the rows, to be done in this order."""

    move_to: Int64Array
    move_from: Int64Array
    """Rows take what other rows had; all are read before one is written."""
    joined: Int64Array
    """Rows that are new."""
    table_entries: Int64Array
    """`[4, n]`: group, row, index, block."""


@attrs.frozen(kw_only=True, eq=False)
class JoinedRows:
    """Everything of the new rows: parallel columns."""

    numbers: Int64Array
    """`[5, n]`: row, computed, last token, top_k, seed."""
    fractions: Float64Array
    """`[3, n]`: temperature, top_p, min_p."""


class DeviceBatch(KeptBatch):
    """A `KeptBatch` that says what a plan changed, and goes on without the tokens' values."""

    def change(self, plan: StepPlan) -> RowChanges:
        """`apply`, and what it came to."""
        self.apply(plan)
        num_old = len(self) - len(plan.joined)
        came_from: dict[int, int] = {}
        for row, last in self.moves:
            came_from[row] = came_from.pop(last, last)
        moves = [(row, origin) for row, origin in came_from.items() if row < num_old]
        joined = np.arange(num_old, len(self))
        move_to, move_from = np.array(moves, np.int64).reshape(-1, 2).T
        return RowChanges(
            move_to=move_to, move_from=move_from, joined=joined, table_entries=self._table_entries(plan, joined)
        )

    def joined_rows(self, rows: Int64Array) -> JoinedRows:
        """What stands in these rows."""
        columns = self._columns[rows]
        return JoinedRows(
            numbers=np.stack(
                (rows, columns["computed"], columns["last_token"], columns["top_k"], columns["seed"].view(np.int64))
            ),
            fractions=np.stack((columns["temperature"], columns["top_p"], columns["min_p"])),
        )

    def lengths(self, plan: StepPlan) -> Int64Array:
        """How many tokens each row computes; 0: it rests."""
        return self._lengths(plan)

    def starts(self, rows: Int64Array) -> Int64Array:
        """How many tokens each has in its blocks."""
        starts: Int64Array = self._columns["computed"][rows]
        return starts

    def is_decode(self, lengths: Int64Array) -> bool:
        """Each row that computes anything computes its last known token."""
        columns = self._columns[: len(self)]
        return bool(((lengths == 0) | ((lengths == 1) & (columns["known"] - columns["computed"] == 1))).all())

    def samples(self, rows: Int64Array, lengths: Int64Array) -> BoolArray:
        """Which of these rows sample a token when they have computed so many."""
        columns = self._columns[rows]
        samples: BoolArray = columns["computed"] + lengths == columns["known"]
        return samples

    def is_plain(self, rows: Int64Array) -> bool:
        """Each of these rows draws one token from its logits as they are, and reports nothing but that."""
        if not self.draws_plainly(rows) or self.shapers(rows):
            return False
        columns = self._columns[rows]
        if self._num_reporting and bool((columns["num_logprobs"] >= 0).any()):
            return False
        return not (self._waiting and self._masked(rows, columns))

    def is_greedy(self, rows: Int64Array) -> bool:
        """Each of these rows takes the most likely token."""
        return not self._columns["temperature"][rows].any()

    def pools(self, rows: Int64Array) -> bool:
        """Whether any of these rows becomes a vector."""
        return bool(self._num_pooling) and any(self._joined[row].pooling is not None for row in rows.tolist())

    def scores(self, rows: Int64Array, lengths: Int64Array) -> bool:
        """Whether prompt tokens are reported when these rows have computed so many."""
        if not self._num_scoring:
            return False
        columns = self._columns[rows]
        firsts = np.maximum(columns["computed"] + 1, columns["prompt_logprobs_from"])
        afters = np.minimum(columns["computed"] + lengths + 1, columns["num_prompt_tokens"])
        return bool((firsts < afters).any())

    def token_ids(self, rows: Int64Array, starts: Int64Array, lengths: Int64Array) -> Int64Array:
        """The tokens that these rows compute, flat; -1 for a row's last known one, which the device has."""
        ends = np.cumsum(lengths)
        tokens = np.empty(int(ends[-1]), np.int64)
        last = starts + lengths == self._columns["known"][rows]
        tokens[ends[last] - 1] = -1
        for i in np.flatnonzero((lengths > 1) | ~last):
            start, count = int(starts[i]), int(lengths[i] - last[i])
            end = int(ends[i] - last[i])
            tokens[end - count : end] = self._tokens[rows[i]][start : start + count]
        return tokens

    def pass_over(self, rows: Int64Array, lengths: Int64Array, sampled_rows: Int64Array) -> None:
        """A step is under way: these rows have computed so many, and these have each a new token, whatever it is."""
        self._columns["computed"][rows] += lengths
        self._columns["known"][sampled_rows] += 1

    def names(self, rows: Int64Array) -> tuple[SequenceId, ...]:
        return tuple(map(self.sequence, rows.tolist()))

    def _table_entries(self, plan: StepPlan, joined: Int64Array) -> Int64Array:
        parts = [np.empty((4, 0), np.int64)]
        if plan.write_blocks:
            rows = [self._find(sequence, "has a table entry written") for sequence in plan.write_sequences]
            parts.append(np.array((plan.write_groups, rows, plan.write_indexes, plan.write_blocks), np.int64))
        for group, table in enumerate(self._tables if len(joined) else ()):
            places, indexes = np.nonzero(table[joined] >= 0)
            rows_of = joined[places]
            parts.append(np.stack((np.full_like(rows_of, group), rows_of, indexes, table[rows_of, indexes])))
        # A row that joins may have entries written by the same plan: its table, read here, has them already.
        return np.concatenate(parts, 1).astype(np.int64)
