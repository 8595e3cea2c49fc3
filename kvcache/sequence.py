"""What one sequence holds of the cache, and what a prefix match found for it."""

import attrs

from .hashing import HashChain
from .ids import BlockId


@attrs.define(eq=False, slots=True)
class SequenceBlocks:
    """The handle of a sequence: its block tables, one for each group. Changed by the manager alone.

    Without blocks it costs nothing and may be dropped; with blocks it must be released. It lives as long as the
    sequence, over preemptions, and keeps the hashes of the sequence's tokens.
    """

    tables: tuple[list[BlockId | None], ...]
    """`tables[group][i]` holds positions `[i * block_size, (i + 1) * block_size)`; None where the window has passed."""
    chain: HashChain = attrs.field(repr=False)
    num_tokens: int = 0
    """Positions `[0, num_tokens)` are covered: each table has ceil(num_tokens / block_size) entries (K7)."""
    writable_end: int = 0
    """Positions below it may be written without asking `reserve` again; 0 after a fork or a truncate."""
    num_stored_blocks: int = 0
    """Full blocks that `store` or a match has dealt with."""
    first_live: list[int] = attrs.field(factory=list)
    """For each group, the entries before it are None."""

    def cut(self, num_entries: int) -> list[BlockId]:
        """Drop the entries from `num_entries` on; returns their blocks, last ones first, the groups side by side."""
        if len(self.tables) == 1:
            gone = [block for block in reversed(self.tables[0][num_entries:]) if block is not None]
        else:
            rows = zip(*(reversed(table[num_entries:]) for table in self.tables), strict=True)
            gone = [block for row in rows for block in row if block is not None]
        for group, table in enumerate(self.tables):
            del table[num_entries:]
            self.first_live[group] = min(self.first_live[group], num_entries)
        return gone

    def passed(self, window_starts: list[int]) -> list[BlockId]:
        """The blocks before each group's window, first ones first."""
        return [
            block
            for table, first, start in zip(self.tables, self.first_live, window_starts, strict=True)
            for block in table[first:start]
            if block is not None
        ]

    def leave_window(self, window_starts: list[int]) -> None:
        """Make None of the entries before each group's window."""
        for group, (table, start) in enumerate(zip(self.tables, window_starts, strict=True)):
            first, end = self.first_live[group], min(start, len(table))
            if end > first:
                table[first:end] = [None] * (end - first)
                self.first_live[group] = end


@attrs.frozen(kw_only=True, eq=False)
class PrefixMatch:
    """Blocks that hold the beginning of a prompt: what `match` found and `admit` takes.

    It holds no reference: admit it before anything else is allocated, or match again.
    """

    num_tokens: int
    """Tokens that need not be computed: a multiple of the block size, less than the prompt has."""
    tables: tuple[list[BlockId | None], ...] = attrs.field(repr=False)
    """`num_tokens / block_size` entries for each group; None where its window does not reach."""

    def blocks(self) -> list[BlockId]:
        """All blocks of the match."""
        return [block for table in self.tables for block in table if block is not None]
