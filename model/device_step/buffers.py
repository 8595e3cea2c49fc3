"""The rows of the batch on the device: allocated once, changed by differences, never moved.

Row i is a sequence while i is below the batch's size. What a row held before stays in it: nobody reads a row that is
not active, nor a table entry behind a sequence's length.
"""

import numpy as np
import torch
from torch import Tensor

from .batch import DeviceBatch, RowChanges
from .transfer import Int64Array, Transfers


class RowBuffers:
    """Columns of `num_rows`, and a block table `[num_rows, table_width]` for each KV group."""

    def __init__(
        self, *, num_rows: int, num_groups: int, table_width: int, device: torch.device, transfers: Transfers
    ) -> None:
        def column(dtype: torch.dtype, fill: float = 0) -> Tensor:
            return torch.full((num_rows,), fill, dtype=dtype, device=device)

        self.num_rows = num_rows
        self.table_width = table_width
        self.tokens = column(torch.int64)
        """The last known token of each sequence; those that were sampled never left the device."""
        self.computed = column(torch.int64)
        """Tokens whose K and V are in the blocks."""
        self.active = column(torch.int64)
        """1 where the row decodes in the next step, 0 where it rests or nobody is."""
        self.temperature = column(torch.float64)
        self.top_k = column(torch.int64)
        self.top_p = column(torch.float64, 1)
        self.min_p = column(torch.float64)
        self.seeds = column(torch.int64)
        self.tables = tuple(
            torch.full((num_rows, table_width), -1, dtype=torch.int32, device=device) for _ in range(num_groups)
        )
        self._transfers = transfers
        self._is_active = np.zeros(num_rows, np.int64)

    def apply(self, changes: RowChanges, batch: DeviceBatch) -> None:
        """What a plan changed, before anything of its step is computed."""
        if len(batch) > self.num_rows:
            raise AssertionError(f"the batch has {len(batch)} sequences, there is room for {self.num_rows}")
        if len(changes.move_to):
            to, origin = self._transfers.upload(np.stack((changes.move_to, changes.move_from)))
            for tensor in (*self._columns(), *self.tables):
                tensor.index_copy_(0, to, tensor.index_select(0, origin))
        if len(changes.joined):
            self._join(changes.joined, batch)
        if changes.table_entries.shape[1]:
            self._write_tables(changes.table_entries)

    def activate(self, lengths: Int64Array) -> None:
        """The rows that decode, of a batch of so many: those with a length. Uploads what has changed since then."""
        wanted = np.zeros_like(self._is_active)
        wanted[: len(lengths)] = lengths > 0
        changed = np.flatnonzero(wanted != self._is_active)
        if changed.size:
            rows, values = self._transfers.upload(np.stack((changed, wanted[changed])))
            self.active.index_copy_(0, rows, values)
            self._is_active = wanted

    def advance(self, rows: Int64Array, contexts: Int64Array) -> None:
        """These rows have so many tokens computed."""
        where, values = self._transfers.upload(np.stack((rows, contexts)))
        self.computed.index_copy_(0, where, values)

    def set_tokens(self, rows: Int64Array, tokens: Int64Array) -> None:
        """The last tokens of rows that were sampled on the host."""
        where, values = self._transfers.upload(np.stack((rows, tokens)))
        self.tokens.index_copy_(0, where, values)

    def _columns(self) -> tuple[Tensor, ...]:
        """What moves with a row. Who is active is said anew for each step."""
        return (self.tokens, self.computed, self.temperature, self.top_k, self.top_p, self.min_p, self.seeds)

    def _join(self, joined: Int64Array, batch: DeviceBatch) -> None:
        rows = batch.joined_rows(joined)
        where, *numbers = self._transfers.upload(rows.numbers)
        for column, values in zip((self.computed, self.tokens, self.top_k, self.seeds), numbers, strict=True):
            column.index_copy_(0, where, values)
        fractions = self._transfers.upload(rows.fractions)
        for column, values in zip((self.temperature, self.top_p, self.min_p), fractions, strict=True):
            column.index_copy_(0, where, values)

    def _write_tables(self, entries: Int64Array) -> None:
        if int(entries[2].max()) >= self.table_width:
            raise AssertionError(f"a table has an entry {int(entries[2].max())}, there is room for {self.table_width}")
        for group, table in enumerate(self.tables):
            own = entries[:, entries[0] == group] if len(self.tables) > 1 else entries
            if own.shape[1]:
                places, blocks = self._transfers.upload(np.stack((own[1] * self.table_width + own[2], own[3])))
                # Equal places come with equal blocks, so their order does not matter.
                table.view(-1).index_copy_(0, places, blocks.to(torch.int32))
