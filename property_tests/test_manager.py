"""The laws of a KV-block allocator, checked through an adapter (adapter.py), beside a naive model (naive_cache.py).

K1   conservation: free + cached + owned + in limbo is the number of blocks, and each block is in one of these states
K2   a block's reference count is the number of table entries that name it; a block with an owner is handed to nobody
K3   a block that is shared or indexed is never written: a sequence that would write one gets a copy first
K4   in one step each (block, slot) is written by at most one sequence
K5   `match` finds the longest indexed prefix of full blocks, of this content and salt alone, short of the whole prompt
K6   eviction takes nothing while a block is free, then the least recently used; of a sequence the tail before the head
K7   a table has ceil(tokens / block size) entries
K8   an allocation is met exactly when the blocks are there; one that is not changes nothing
K9   a block released while steps are in flight is handed to nobody until the last one begun before that has landed
K10  `truncate` gives back exactly the blocks past the new length
K11  when all sequences have ended every block is free or cached, and what is cached still matches
K12  a sliding-window group gives back the blocks that its window has left; other groups of the sequence keep theirs
K13  a pinned prefix is not evicted until it is unpinned, expired or reset; pins together keep to their limit
K14  events tell every change of what can be matched

Choices that another allocator could make otherwise, and that this suite expects:

- A content is indexed once, with the first block that has it; a second block with that content stays unindexed, and is
  free as soon as nobody owns it. It is not indexed later, when the first is evicted.
- A block in limbo is not matched before it has landed, although its content is good: limbo belongs to the device.
- A sequence that owns a block alone and was truncated into it writes in place, and the block leaves the index. That
  takes no block, so a lone sequence in a full pool never stands still. A pinned block is copied instead.
- The groups of a sequence release side by side: the last block of each, then the last but one of each.
- A window gives its blocks back when the sequence reserves, by the positions that were covered before.
- Unpinning, and a release, make a block the most recently used; a match alone does not.

All of them together protect one thing, which is checked after every operation: through its block tables a sequence
reads back what it wrote, and nothing else (`reads_back`).
"""

import sys

import pytest
from hypothesis import settings
from hypothesis.stateful import invariant

from . import adapter
from .cache_endings import CacheMachine
from .naive_cache import NaiveSequence


class AllocatorLaws(CacheMachine):
    """Every law, after every operation."""

    @invariant()
    def laws(self) -> None:
        """One invariant for all laws keeps the program that Hypothesis prints short."""
        adapter.operations["allocator"] += 1
        self.k1_each_block_is_in_one_state()
        self.k2_no_operation_touches_another_sequence()
        self.k7_tables_waste_less_than_a_block()
        self.k12_windows_hold_what_they_see()
        self.k13_pinned_blocks_keep_their_content()
        self.k14_events_mirror_the_index()
        self.reads_back()
        self.real.check()

    def k1_each_block_is_in_one_state(self) -> None:
        """What can be allocated is what the model finds free or cached."""
        available, expected = self.real.num_available(), self.model.num_available()
        assert available == expected, f"K1: {available} blocks are available, {expected} are free or cached"

    def k2_no_operation_touches_another_sequence(self) -> None:
        """Every table is as the model left it, also those of sequences that had no part in the operation."""
        for sequence in self.model.live:
            if sequence.tables[0]:
                tables = self._tables(sequence)
                assert tables == sequence.tables, f"K2: {sequence.tables} became {tables}"

    def k7_tables_waste_less_than_a_block(self) -> None:
        """Every group's table has ceil(tokens / block size) entries."""
        for sequence in self.model.live:
            expected = self.model.num_entries(len(sequence.tokens))
            for table in sequence.tables:
                assert len(table) == expected, f"K7: {len(sequence.tokens)} tokens, table {table}"

    def k12_windows_hold_what_they_see(self) -> None:
        """An entry is missing only where no later query of the group sees it, and never in full attention."""
        for sequence in self.model.live:
            for group, table in enumerate(sequence.tables):
                visible = table[self.model.first_visible(group, sequence.covered) :]
                assert None not in visible, f"K12: group {group} lost blocks that it sees: {table}"

    def k13_pinned_blocks_keep_their_content(self) -> None:
        """Every pinned block is indexed, and the pins keep to their limit."""
        pinned = self.model.pinned()
        assert pinned <= set(self.model.index.values()), "K13: a pinned block has lost its content"
        assert len(pinned) <= self.model.max_pinned, "K13: the pins are over their limit"

    def k14_events_mirror_the_index(self) -> None:
        """Whoever follows the events knows what can be matched."""
        if not adapter.supports("events"):
            return
        for kind, group, block in self.real.events():
            if kind == "stored":
                assert (group, block) not in self.mirror, f"K14: block {block} is stored twice"
                self.mirror.add((group, block))
            else:
                assert (group, block) in self.mirror, f"K14: block {block} is evicted and was never stored"
                self.mirror.remove((group, block))
        indexed = {(group, block) for (group, _), block in self.model.index.items()}
        assert self.mirror == indexed, f"K14: the events say {self.mirror}, indexed are {indexed}"

    def reads_back(self) -> None:
        """Through its tables each sequence reads what it wrote, wherever its next query looks."""
        for sequence in self.model.live:
            for group, table in enumerate(sequence.tables):
                window = self.model.windows[group]
                first = 0 if window is None else max(0, sequence.written - window + 1)
                for position in range(first, sequence.written):
                    place, slot = divmod(position, self.model.block_size)
                    block = table[place]
                    if block in self.model.copies:  # filled at the start of the next step
                        block = self.model.copies[block]
                    cell = None if block is None else self.cells.get((block, slot))
                    assert cell == (group, sequence.trail[position]), f"K3, K5: position {position} reads {cell}"

    def teardown(self) -> None:
        """K11: everyone leaves, every step lands."""
        if sys.exc_info()[1] is not None or not hasattr(self, "model"):
            return  # a law is broken already: this would hide it behind its consequences
        for sequence in tuple(self.model.live):
            self._release(sequence)
        while self.in_flight:
            self.land(stores=True)
        self.k1_each_block_is_in_one_state()
        self.k14_events_mirror_the_index()
        num_kept = len(self.model.pinned())
        available = self.real.num_available()
        assert available == self.model.num_blocks - num_kept, f"K11: {available} available, {num_kept} pinned"
        if self.model.caching:
            for salt, tokens in self.past[1:]:
                sequence = NaiveSequence(salt=salt, tokens=[])
                sequence.extend(tokens)
                expected = self.model.match(sequence, (len(tokens) - 1) // self.model.block_size)
                found = self.real.match(self.real.open(salt), tokens)
                assert found == expected * self.model.block_size, (
                    f"K11: {found} tokens match, {expected} blocks are cached"
                )
        self.real.check()


AllocatorLaws.TestCase.settings = settings(max_examples=5 * settings().max_examples)
TestAllocatorLaws = pytest.mark.allocator(AllocatorLaws.TestCase)
