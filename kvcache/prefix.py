"""Which block holds which content: one index for each group, because each group's layers hold K and V of their own.

The index keeps, for each block, the preimage of its hash (parent hash and token ids): a lookup compares it, so that two
contents with one hash are never taken for each other. A content is indexed once: the second block with the same content
stays unindexed, and goes back to the free ones when its owner is done with it.
"""

from array import array
from collections.abc import Sequence

import attrs

from .errors import LawBroken
from .hashing import TOKEN_BYTES
from .ids import BlockId


@attrs.frozen(kw_only=True)
class Content:
    """What an indexed block is found by."""

    group: int
    content_hash: bytes
    parent_hash: bytes
    token_ids: tuple[int, ...]


class PrefixIndex:
    """Content to block and back. `hashes[b]` is the hash under which block b is indexed, None when it is not."""

    def __init__(self, num_blocks: int, num_groups: int) -> None:
        self.hashes: list[bytes | None] = [None] * num_blocks
        """Read-only to others; the pool looks here whether a block is worth keeping."""
        self._preimages: list[bytes | None] = [None] * num_blocks
        self._groups = [0] * num_blocks
        self._blocks: tuple[dict[bytes, BlockId], ...] = tuple({} for _ in range(num_groups))

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def add(self, group: int, block: BlockId, content_hash: bytes, preimage: bytes) -> bool:
        """Index `block`, unless it is indexed already or its hash is taken. True when it was added."""
        blocks = self._blocks[group]
        if self.hashes[block] is not None or content_hash in blocks:
            return False
        blocks[content_hash] = block
        self.hashes[block] = content_hash
        self._preimages[block] = preimage
        self._groups[block] = group
        return True

    def remove(self, block: BlockId) -> tuple[int, bytes]:
        """Forget what `block` holds; returns its group and hash."""
        content_hash = self.hashes[block]
        if content_hash is None:
            raise KeyError(block)
        group = self._groups[block]
        del self._blocks[group][content_hash]
        self.hashes[block] = None
        self._preimages[block] = None
        return group, content_hash

    def leading(self, group: int, hashes: Sequence[bytes], preimages: Sequence[bytes]) -> list[BlockId]:
        """The blocks of the longest indexed beginning of the chain."""
        found: list[BlockId | None] = list(map(self._blocks[group].get, hashes))
        if None in found:
            del found[found.index(None) :]
        held = [self._preimages[block] for block in found]  # type: ignore[index]
        if held != preimages[: len(held)]:
            for place, (mine, theirs) in enumerate(zip(preimages, held, strict=False)):
                if mine != theirs:
                    del found[place:]
                    break
        return found  # type: ignore[return-value]

    def get(self, group: int, content_hash: bytes, preimage: bytes) -> BlockId | None:
        """The block that holds exactly this content."""
        block = self._blocks[group].get(content_hash)
        if block is None or self._preimages[block] != preimage:
            return None
        return block

    def content(self, block: BlockId, block_size: int) -> Content | None:
        """Of one block, which holds `block_size` tokens; None when it is not indexed."""
        content_hash, preimage = self.hashes[block], self._preimages[block]
        if content_hash is None or preimage is None:
            return None
        width = block_size * TOKEN_BYTES
        return Content(
            group=self._groups[block],
            content_hash=content_hash,
            parent_hash=preimage[:-width],
            token_ids=tuple(array("I", preimage[-width:])),
        )

    def check(self) -> None:
        """Assert that the index and the blocks name each other (K5). O(num_blocks)."""
        for group, blocks in enumerate(self._blocks):
            for content_hash, block in blocks.items():
                if self.hashes[block] != content_hash or self._groups[block] != group:
                    raise LawBroken("K5", f"the index names block {block} for a content that it does not hold")
        num_indexed = sum(content_hash is not None for content_hash in self.hashes)
        if num_indexed != len(self):
            raise LawBroken("K5", f"{num_indexed} blocks hold content, {len(self)} are in the index")
