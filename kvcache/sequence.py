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


@attrs.frozen(kw_only=True, eq=False)
class PrefixMatch:
    """Blocks that hold the beginning of a prompt: what `match` found and `admit` takes.

    It holds no reference: admit it before anything else is allocated, or match again.
    """

    num_tokens: int
    """Tokens that need not be computed: a multiple of the block size, less than the prompt has."""
    tables: tuple[list[BlockId | None], ...] = attrs.field(repr=False)
    """`num_tokens / block_size` entries for each group; None where its window does not reach."""
