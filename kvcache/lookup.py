"""The longest prefix that every group can supply: full attention needs all of it, a sliding window its last blocks."""

from collections.abc import Sequence

from .group import KVGroup
from .hashing import HashChain
from .ids import BlockId
from .pool import BlockPool
from .prefix import PrefixIndex
from .sequence import PrefixMatch

FIRST_BATCH_BLOCKS = 8
"""Hashing doubles from here while blocks are found: a prompt that is not cached is not hashed to its end in vain."""


class PrefixLookup:
    """Reads the index and the pool; changes neither."""

    def __init__(self, index: PrefixIndex, pool: BlockPool, groups: tuple[KVGroup, ...], block_size: int) -> None:
        self._index = index
        self._pool = pool
        self._groups = groups
        self._block_size = block_size
        self._full = [place for place, group in enumerate(groups) if group.sliding_window is None]
        self._windowed = [place for place, group in enumerate(groups) if group.sliding_window is not None]

    def longest(self, chain: HashChain, token_ids: Sequence[int], limit: int) -> PrefixMatch:
        """The longest prefix of at most `limit` blocks that can be had in every group. Blocks in limbo cannot."""
        tables: list[list[BlockId | None]] = [[] for _ in self._groups]
        length = limit
        for place in self._full:
            tables[place] += self._beginning(place, chain, token_ids, length)
            length = len(tables[place])
        if self._windowed:
            chain.extend(token_ids, length)
            length = self._fit_windows(chain, length)
            for place in self._windowed:
                first = self._groups[place].first_visible_block(length * self._block_size, self._block_size)
                tables[place] += [None] * min(first, length)
                tables[place] += [self._get(place, chain, index) for index in range(first, length)]
        for place in self._full:
            del tables[place][length:]
        return PrefixMatch(num_tokens=length * self._block_size, tables=tuple(tables))

    def _beginning(self, group: int, chain: HashChain, token_ids: Sequence[int], limit: int) -> list[BlockId]:
        found: list[BlockId] = []
        while len(found) < limit:
            start = len(found)
            end = min(limit, max(FIRST_BATCH_BLOCKS, 2 * start, len(chain.hashes)))
            chain.extend(token_ids, end)
            batch = self._index.leading(group, chain.hashes[start:end], chain.preimages[start:end])
            limbo = self._pool.limbo
            if limbo:
                landed = next((place for place, block in enumerate(batch) if block in limbo), len(batch))
                del batch[landed:]
            found += batch
            if len(found) < end:
                break
        return found

    def _get(self, group: int, chain: HashChain, index: int) -> BlockId | None:
        block = self._index.get(group, chain.hashes[index], chain.preimages[index])
        return None if block in self._pool.limbo else block

    def _fit_windows(self, chain: HashChain, length: int) -> int:
        """The longest prefix of at most `length` blocks whose last window is there in every windowed group."""
        while True:
            fitted = length
            for place in self._windowed:
                fitted = self._fit_window(place, chain, fitted)
            if fitted == length:
                return length
            length = fitted

    def _fit_window(self, place: int, chain: HashChain, length: int) -> int:
        index = length - 1
        while length:
            first = self._groups[place].first_visible_block(length * self._block_size, self._block_size)
            while index >= first and self._get(place, chain, index) is not None:
                index -= 1
            if index < first:
                break
            # Every length above `index` has this missing block in its window.
            length = index
            index -= 1
        return length
