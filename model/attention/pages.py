"""Block tables as other libraries want them: pages of each sequence from the first that any of its queries sees.

Pure numpy. What lies before a sliding window is left out by whole pages, since its blocks may be gone: positions only
matter relative to one another there, keys are turned already.
"""

import attrs
import numpy as np

from .interface import Int32Array, Int64Array, StepLayout


@attrs.frozen(kw_only=True, eq=False)
class Pages:
    """One step, for layers of one group and window. `n` sequences."""

    query_starts: Int32Array
    """`[n + 1]`."""
    lengths: Int64Array
    """Keys of each sequence in its pages."""
    counts: Int64Array
    """Pages of each."""
    tables: Int32Array
    """`[n, most]`: their blocks; 0 where a sequence has fewer."""

    @property
    def key_starts(self) -> Int32Array:
        """`[n + 1]`: the lengths, summed up."""
        return _starts(self.lengths)

    @property
    def flat(self) -> Int32Array:
        """The blocks of all, sequence after sequence."""
        here: Int32Array = self.tables[np.arange(self.tables.shape[1]) < self.counts[:, None]]
        return here

    @property
    def page_starts(self) -> Int32Array:
        """`[n + 1]`: where those of each begin in `flat`."""
        return _starts(self.counts)


def pages_of(layout: StepLayout, group: int, window: int | None, block_size: int) -> Pages:
    """What the layers of a group see that have this window."""
    contexts, queries = layout.context_lengths, layout.query_lengths
    dropped = np.zeros_like(contexts)
    if window is not None:
        dropped = np.maximum(contexts - queries + 1 - window, 0) // block_size
    lengths = contexts - dropped * block_size
    counts = -(-lengths // block_size)
    columns = np.arange(int(counts.max())) + dropped[:, None]
    table = layout.tables[group]
    tables = np.take_along_axis(table, np.minimum(columns, table.shape[1] - 1), 1)
    tables = np.where(np.arange(columns.shape[1]) < counts[:, None], tables, 0).astype(np.int32)
    return Pages(query_starts=_starts(queries), lengths=lengths, counts=counts, tables=tables)


def _starts(lengths: Int64Array) -> Int32Array:
    starts = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    return starts
