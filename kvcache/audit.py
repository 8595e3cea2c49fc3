"""The laws that tie block tables to the pool and the index, asserted over all live sequences."""

from collections.abc import Iterable

from .errors import LawBroken
from .group import KVGroup
from .ids import BlockId
from .pool import BlockPool
from .prefix import PrefixIndex
from .sequence import SequenceBlocks


def check_sequences(
    sequences: Iterable[SequenceBlocks],
    groups: tuple[KVGroup, ...],
    block_size: int,
    pool: BlockPool,
    index: PrefixIndex,
) -> None:
    """Assert K2, K3, K5, K7 and K12. O(table entries + pool)."""
    named = [0] * pool.num_blocks
    for blocks in sequences:
        _check_tables(blocks, groups, block_size)
        _check_content(blocks, block_size, pool, index)
        for table in blocks.tables:
            seen: set[BlockId] = set()
            for block in table:
                if block is None:
                    continue
                if block in seen:
                    raise LawBroken("K4", f"one table names block {block} twice")
                seen.add(block)
                named[block] += 1
    for number, (count, refcount) in enumerate(zip(named, pool.refcounts, strict=True)):
        if count != refcount:
            raise LawBroken("K2", f"block {number} has refcount {refcount}, {count} table entries name it")


def _check_tables(blocks: SequenceBlocks, groups: tuple[KVGroup, ...], block_size: int) -> None:
    num_entries = -(-blocks.num_tokens // block_size)
    if not num_entries:
        raise LawBroken("K11", "a sequence without tokens counts as live")
    for group, table, first in zip(groups, blocks.tables, blocks.first_live, strict=True):
        if len(table) != num_entries:
            raise LawBroken("K7", f"{blocks.num_tokens} tokens have {len(table)} table entries")
        if first > group.first_visible_block(blocks.num_tokens, block_size):
            raise LawBroken(
                "K12", f"entries before {first} are gone, the query at {blocks.num_tokens} sees some of them"
            )
        if any((block is None) != (place < first) for place, block in enumerate(table)):
            raise LawBroken("K12", f"the entries before {first}, and only they, should be None")


def _check_content(blocks: SequenceBlocks, block_size: int, pool: BlockPool, index: PrefixIndex) -> None:
    num_stored = blocks.num_stored_blocks
    if num_stored * block_size > blocks.num_tokens or num_stored > len(blocks.chain.hashes):
        raise LawBroken("K5", f"{num_stored} blocks are stored, {blocks.num_tokens} tokens covered")
    writable = range(blocks.num_tokens // block_size, blocks.writable_end // block_size)
    for table in blocks.tables:
        for place, block in enumerate(table):
            if block is None:
                continue
            held = index.hashes[block]
            if place < num_stored and held not in (None, blocks.chain.hashes[place]):
                raise LawBroken("K5", f"block {block} is indexed under another content than its sequence's")
            if place in writable and (held is not None or pool.refcounts[block] > 1):
                raise LawBroken("K3", f"block {block} may be written and is shared or indexed")
