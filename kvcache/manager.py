"""The allocator: block tables of sequences over one pool of blocks, with prefix caching, forks and sliding windows.

Pure and synchronous: no clock, no tensor, no thread. Time and step numbers come in as arguments. It promises the laws
K1 to K14 (docs/allocator-spec.md); `check()` asserts them. Every operation is O(blocks it touches).

How a step uses it:

    match, admit / reserve ...      plan the step
    take_copies                     what the device must copy before it writes
    begin_step(n)                   the plan is out: from here on a release waits for the landing of step n (K9)
    land(n), store ...              the result is in; what was written may be indexed

What is indexed or shared is never written (K3). A write into a shared block is preceded by a copy. A write into a block
that only the writer owns, but that is indexed (possible after a `truncate` alone), takes it out of the index and
happens in place: that needs no block, so a lone sequence in a full pool never stands still. A pinned block is copied.
"""

from collections.abc import Callable, Sequence

from .audit import check_sequences
from .copies import PendingCopies
from .errors import LawBroken, SequenceStateError, StaleMatch
from .events import CacheEvents, Listener
from .group import KVGroup
from .hashing import Digest, HashChain, root_of, sha256
from .ids import BlockId
from .lookup import PrefixLookup
from .pins import Pin, Pins
from .pool import BlockPool
from .prefix import PrefixIndex
from .sequence import PrefixMatch, SequenceBlocks
from .view import CacheView

TableWrite = tuple[int, int, BlockId]
"""(group, index, block): `table[group][index]` names `block` now."""


class KVCacheManager:
    """See the module's docstring. One thread at a time; nothing here waits."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        groups: tuple[KVGroup, ...] = (KVGroup(),),
        enable_prefix_caching: bool = True,
        max_pinned_blocks: int | None = None,
        digest: Digest = sha256,
    ) -> None:
        """`max_pinned_blocks` (default: half of the pool) is how many blocks pins may keep from eviction together."""
        if block_size < 1:
            raise ValueError(f"a block holds at least one token, not {block_size}")
        if not groups:
            raise ValueError("there is at least one group")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.groups = groups
        self.enable_prefix_caching = enable_prefix_caching
        self.events = CacheEvents()
        self._digest = digest
        self._index = PrefixIndex(num_blocks, len(groups))
        self._pool = BlockPool(num_blocks, contents=self._index.hashes, evict=self._unindex)
        self._lookup = PrefixLookup(self._index, self._pool, groups, block_size)
        self._pins = Pins(self._pool, num_blocks // 2 if max_pinned_blocks is None else max_pinned_blocks)
        self._copies = PendingCopies()
        self._live: set[SequenceBlocks] = set()
        self.view = CacheView(self._pool, self._index, block_size)
        """For whoever draws the pool."""
        self._windowed = any(group.sliding_window is not None for group in groups)

    # What there is

    @property
    def num_free_blocks(self) -> int:
        """Blocks that an allocation can get now: free, or cached and not pinned."""
        return self._pool.num_available

    @property
    def num_sequences(self) -> int:
        """Sequences that hold blocks."""
        return len(self._live)

    @property
    def usage(self) -> float:
        """The share of the pool that is owned or in limbo, 0 to 1."""
        return (self._pool.num_owned + len(self._pool.limbo)) / self.num_blocks

    # The life of a sequence

    def open(self, *, extra_keys: tuple[str | int | bytes, ...] = ()) -> SequenceBlocks:
        """A handle without blocks. Only sequences with equal extra keys (salt, adapter, …) share cached blocks."""
        return SequenceBlocks(
            tables=tuple([] for _ in self.groups),
            chain=HashChain(root_of(extra_keys), self.block_size, self._digest),
            first_live=[0] * len(self.groups),
        )

    def match(self, blocks: SequenceBlocks, token_ids: Sequence[int]) -> PrefixMatch:
        """The longest indexed beginning of `token_ids`, at least one token short of it (K5). Takes nothing.

        The content of a block in limbo is not found until it has landed. The hashes stay with the handle: a prompt that
        is matched again is not hashed again. `token_ids` may have grown since the last call, not changed.
        """
        if not self.enable_prefix_caching:
            return PrefixMatch(num_tokens=0, tables=tuple([] for _ in self.groups))
        return self._lookup.longest(blocks.chain, token_ids, max(0, len(token_ids) - 1) // self.block_size)

    def fits(self, match: PrefixMatch, num_tokens: int, *, spare: int = 0) -> bool:
        """Whether `admit` could cover [0, num_tokens) now and leave `spare` blocks available beside. Takes nothing."""
        num_new = self._num_entries(num_tokens) - match.num_tokens // self.block_size
        # A hit on a cached block takes it out of what is available, as a new block does.
        num_idle = sum(map(self._pool.is_evictable, match.blocks()))
        return num_new * len(self.groups) + num_idle + spare <= self._pool.num_available

    def admit(self, blocks: SequenceBlocks, match: PrefixMatch, num_tokens: int) -> bool:
        """Take the matched blocks and cover positions [0, num_tokens). False: cannot be met, nothing changed (K8).

        `blocks` must hold nothing. The caller will write the positions [match.num_tokens, num_tokens).
        """
        if blocks.tables[0]:
            raise SequenceStateError("the sequence holds blocks already")
        if num_tokens < match.num_tokens:
            raise ValueError(f"{num_tokens} tokens are fewer than the {match.num_tokens} that matched")
        pool = self._pool
        num_hits = match.num_tokens // self.block_size
        num_new = self._num_entries(num_tokens) - num_hits
        self._confirm(blocks, match)
        if not self.fits(match, num_tokens):
            return False
        pool.acquire(match.blocks())
        for group, table in enumerate(blocks.tables):
            table += match.tables[group]
            table += self._take(num_new)
            blocks.first_live[group] = next((i for i, block in enumerate(table) if block is not None), num_hits)
        blocks.num_tokens = num_tokens
        blocks.writable_end = len(blocks.tables[0]) * self.block_size
        blocks.num_stored_blocks = num_hits
        if num_tokens:
            self._live.add(blocks)
        return True

    def reserve(self, blocks: SequenceBlocks, num_tokens: int) -> list[TableWrite] | None:
        """Cover positions [0, num_tokens); returns the changed table entries. None: it cannot, nothing changed (K8).

        The caller will write exactly the positions [old num_tokens, num_tokens) in the next step. A shared block among
        them is replaced by a fresh one, and the copy is recorded (`take_copies`). Blocks that no position from the old
        num_tokens on can see are given back (K12); that makes None of their entries, and is not among the writes.
        Covering less than before changes nothing; see `truncate`. With sliding windows, reserve once for a step: the
        windows follow what was covered before. Positions up to `writable_end` may be written without asking.
        """
        if num_tokens <= blocks.writable_end and not self._windowed:
            if num_tokens > blocks.num_tokens:
                blocks.num_tokens = num_tokens
            return []
        if num_tokens <= blocks.num_tokens:
            return []
        return self._extend(blocks, num_tokens)

    def _extend(self, blocks: SequenceBlocks, num_tokens: int) -> list[TableWrite] | None:
        pool = self._pool
        tables = blocks.tables
        start = blocks.num_tokens
        old_entries = len(tables[0])
        num_new = -(-num_tokens // self.block_size) - old_entries
        copied: list[int] = []
        if start % self.block_size:
            copied = [group for group, table in enumerate(tables) if self._must_copy(table[-1])]
        num_needed = num_new * len(tables) + len(copied)
        passed: list[BlockId] = []
        if self._windowed:
            window_starts = [group.first_visible_block(start, self.block_size) for group in self.groups]
            passed = blocks.passed(window_starts)
        if num_needed > pool.num_available + sum(map(self._frees_at_once, passed)):
            return None
        if passed:
            blocks.leave_window(window_starts)
            self._give_back(passed)
        writes = [(group, old_entries - 1, self._copy_last(tables[group])) for group in copied]
        if start % self.block_size:
            for table in tables:
                self._own_content(table[-1])
        for group, table in enumerate(tables):
            fresh = self._take(num_new)
            index = len(table)
            table += fresh
            for block in fresh:
                writes.append((group, index, block))
                index += 1
        blocks.num_tokens = num_tokens
        blocks.writable_end = len(tables[0]) * self.block_size
        if not old_entries:
            self._live.add(blocks)
        return writes

    def store(self, blocks: SequenceBlocks, token_ids: Sequence[int], num_computed: int) -> None:
        """Index the full blocks of positions [0, num_computed), whose K and V have landed.

        `token_ids` holds at least their tokens. A content that is indexed already stays with the block that has it.
        O(1) when no block was filled.
        """
        if num_computed > blocks.num_tokens:
            if num_computed > len(blocks.tables[0]) * self.block_size:
                raise SequenceStateError(f"{num_computed} tokens computed, {blocks.num_tokens} covered")
            # The caller wrote up to writable_end without asking; what has landed is not going to be written again.
            blocks.num_tokens = num_computed
        num_full = num_computed // self.block_size
        first = blocks.num_stored_blocks
        if num_full <= first or not self.enable_prefix_caching:
            return
        chain = blocks.chain
        chain.extend(token_ids, num_full)
        for group, table in enumerate(blocks.tables):
            added = []
            for place in range(first, num_full):
                block = table[place]
                if block is not None and self._index.add(group, block, chain.hashes[place], chain.preimages[place]):
                    added.append(place)
            if added and self.events.wanted:
                self.events.stored(group, table, chain, added)
        blocks.num_stored_blocks = num_full

    def fork(self, blocks: SequenceBlocks) -> SequenceBlocks:
        """A second sequence with the same past: shares every block, also the partial one, and copies none (K3).

        Whichever of the two reserves first gets a copy of the partial block; the last owner writes in place. What the
        fork shares must have been written by steps already begun: fork before reserving for the next step.
        """
        child = SequenceBlocks(
            tables=tuple(table.copy() for table in blocks.tables),
            chain=blocks.chain.copy(),
            num_tokens=blocks.num_tokens,
            num_stored_blocks=blocks.num_stored_blocks,
            first_live=blocks.first_live.copy(),
        )
        blocks.writable_end = 0
        for table in child.tables:
            self._pool.acquire(block for block in table if block is not None)
        if child.tables[0]:
            self._live.add(child)
        return child

    def truncate(self, blocks: SequenceBlocks, num_tokens: int) -> None:
        """Cover [0, num_tokens) only, giving back exactly the blocks past it (K10). What was stored stays indexed.

        The tokens from num_tokens on may be others now. A sliding window that has moved on cannot be taken back:
        SequenceStateError when a block that the query at num_tokens would see has been given back.
        """
        kept = self._num_entries(num_tokens)
        if num_tokens < 0 or kept > len(blocks.tables[0]):
            raise SequenceStateError(f"cannot truncate to {num_tokens} tokens, {blocks.num_tokens} are covered")
        for group, first_live in zip(self.groups, blocks.first_live, strict=True):
            if group.first_visible_block(num_tokens, self.block_size) < min(first_live, kept):
                raise SequenceStateError(f"the window has passed position {num_tokens}")
        self._give_back(blocks.cut(kept))
        num_full = num_tokens // self.block_size
        blocks.chain.trim(num_full)
        blocks.num_stored_blocks = min(blocks.num_stored_blocks, num_full)
        blocks.num_tokens = num_tokens
        blocks.writable_end = 0
        if not kept:
            self._live.discard(blocks)

    def release(self, blocks: SequenceBlocks) -> None:
        """Give every block back, the tail to be evicted before the head. The handle may be admitted again.

        Releasing a handle without blocks does nothing. The hashes stay for the next `match`.
        """
        self._give_back(blocks.cut(0))
        blocks.num_tokens = 0
        blocks.writable_end = 0
        blocks.num_stored_blocks = 0
        self._live.discard(blocks)

    # Steps

    def take_copies(self) -> list[tuple[BlockId, BlockId]]:
        """(source, target) of the copies due since the last call; read all sources before writing any target."""
        return self._copies.take()

    def begin_step(self, step: int) -> None:
        """The plan of `step` is out. Until it lands, blocks that are released go into limbo (K9)."""
        self._pool.begin_step(step)

    def land(self, step: int) -> None:
        """The device is through with `step`, and with every step before it."""
        self._pool.land(step)

    # Pins, events, the whole

    def pin(
        self,
        token_ids: Sequence[int],
        *,
        expires_at: float | None = None,
        extra_keys: tuple[str | int | bytes, ...] = (),
    ) -> Pin:
        """Keep the longest indexed beginning of `token_ids` from eviction (K13) until `unpin`, `reset`, or an `expire`
        at `expires_at` or later. PinLimitExceeded, and nothing changed, when that would be too many blocks.
        """
        chain = HashChain(root_of(extra_keys), self.block_size, self._digest)
        limit = len(token_ids) // self.block_size if self.enable_prefix_caching else 0
        return self._pins.add(self._lookup.longest(chain, token_ids, limit), expires_at)

    def unpin(self, pin: Pin) -> bool:
        """Give the pin up; False when it was gone already."""
        return self._pins.remove(pin)

    def expire(self, now: float) -> int:
        """Give up the pins whose time has come; returns how many. O(that many)."""
        return self._pins.expire(now)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every BlocksStored and BlocksEvicted from now on (K14); returns what ends it.

        It is called in the middle of an operation: it must neither raise nor call the manager.
        """
        return self.events.subscribe(listener)

    def reset(self) -> bool:
        """Forget all cached content, pins included (the weights have changed, say). False and nothing changed while a
        sequence holds blocks or a step in flight may name one."""
        if not self._pool.reset():
            return False
        self._pins.clear()
        return True

    def check(self) -> None:
        """Assert every law that can be read off the state; LawBroken names the one that fails. O(pool + tables)."""
        self._pool.check()
        self._index.check()
        if self._pins.counts() != self._pool.pin_counts():
            raise LawBroken("K13", "the pins and the pinned blocks differ")
        if self._pool.num_pinned > self._pins.max_blocks:
            raise LawBroken("K13", f"{self._pool.num_pinned} blocks are pinned, the limit is {self._pins.max_blocks}")
        for target in self._copies.targets():
            if self._pool.refcounts[target] < 1:
                raise LawBroken("K3", f"a copy is due into block {target}, which nobody owns")
        check_sequences(self._live, self.groups, self.block_size, self._pool, self._index)

    # Parts

    def _num_entries(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _take(self, count: int) -> list[BlockId]:
        fresh = self._pool.allocate(count)
        if fresh is None:
            raise AssertionError(f"{count} blocks were counted as available and are not")
        return fresh

    def _unindex(self, block: BlockId) -> None:
        group, content_hash = self._index.remove(block)
        if self.events.wanted:
            self.events.evicted(group, content_hash, block)

    def _confirm(self, blocks: SequenceBlocks, match: PrefixMatch) -> None:
        hashes = self._index.hashes
        limbo = self._pool.limbo
        for table in match.tables:
            expected = blocks.chain.hashes
            for place, block in enumerate(table):
                if block is not None and (hashes[block] != expected[place] or block in limbo):
                    raise StaleMatch(f"block {block} no longer holds block {place} of the prompt")

    def _must_copy(self, block: BlockId | None) -> bool:
        return block is not None and (self._pool.refcounts[block] > 1 or self._pool.is_pinned(block))

    def _copy_last(self, table: list[BlockId | None]) -> BlockId:
        source = table[-1]
        (target,) = self._take(1)
        table[-1] = target
        if source is not None:
            self._copies.add(source, target)
            self._give_back([source])
        return target

    def _own_content(self, block: BlockId | None) -> None:
        """The block is about to be written by its only owner: it must not be found any more."""
        if block is not None and self._index.hashes[block] is not None:
            self._unindex(block)

    def _give_back(self, blocks: list[BlockId]) -> None:
        self._copies.drop(self._pool.release(blocks))

    def _frees_at_once(self, block: BlockId) -> bool:
        pool = self._pool
        return pool.refcounts[block] == 1 and not pool.in_flight and not pool.is_pinned(block)
