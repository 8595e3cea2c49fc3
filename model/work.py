"""What a step computes, as the batch tells the forward pass: `StepWork`, and where it writes. Columns on the host."""

from collections.abc import Callable, Sequence

import attrs
import numpy as np

from ..engine.core.ids import SequenceId
from .attention.interface import Int32Array, Int64Array, StepLayout


@attrs.frozen(kw_only=True, eq=False)
class StepWork:
    """What a step computes: the flat batch, where it lies, and which of its rows are sampled."""

    rows: Int64Array
    """The batch's rows that compute anything, in the order of the layout."""
    token_ids: Int64Array
    positions: Int64Array
    layout: StepLayout
    sampled_rows: Int64Array
    """Rows of the batch that sample a token."""
    sampled_tokens: Int64Array
    """The rows of the flat batch whose logits are wanted: the last tokens of `sampled_rows`, in the same order, then
    the tokens before those that `scored` names."""
    scored: tuple[tuple[int, int, Int64Array, int], ...] = ()
    """Prompt tokens to report: row of the batch, position of the first, the tokens, how many rivals of each."""
    pooled: tuple[tuple[int, int, bool], ...] = ()
    """Whose states are wanted: row of the batch, of how many of its tokens, and whether its last one is among them."""
    pooled_tokens: Int64Array = attrs.field(factory=lambda: np.empty(0, np.int64))
    """The rows of the flat batch whose states are wanted, in the order of `pooled`."""


def slots(
    tables: Sequence[Int32Array],
    rows: Int64Array,
    positions: Int64Array,
    block_size: int,
    name: Callable[[int], SequenceId],
) -> tuple[Int64Array, ...]:
    """For each group's table the row of `KVTensors.rows` where each token is written. AssertionError where there is no
    block; it says the row's name."""
    indexes, offsets = positions // block_size, positions % block_size
    found = []
    for table in tables:
        blocks = table[rows, np.minimum(indexes, table.shape[1] - 1)]
        if blocks.min() < 0 or indexes.max() >= table.shape[1]:
            at = int(np.flatnonzero((blocks < 0) | (indexes >= table.shape[1]))[0])
            raise AssertionError(
                f"sequence {name(int(rows[at]))} is to write position {positions[at]}, "
                f"but its table has no block {indexes[at]}"
            )
        found.append(blocks.astype(np.int64) * block_size + offsets)
    return tuple(found)
