"""Half of the rules by which Hypothesis drives an allocator and the naive model side by side: what grows.

The other half is in cache_endings.py; test_manager.py names the laws.

The machine plays scheduler and device. Steps are carried out in order when they begin, so what a sequence wrote can be
read back through its table from then on; their landing comes later, up to three steps behind.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from . import adapter
from .naive_cache import NaiveCache, NaiveSequence, Table

MOST_LIVE = 6
MOST_IN_FLIGHT = 3

anyone = st.integers(0, 59)
"""Picks one of what there is, modulo."""


class Prompt(NamedTuple):
    """How a prompt is made: like an earlier one up to some token, then whole blocks of one token, then a tail.

    There are few different tokens, so that prefixes are shared.
    """

    like: int
    """Which earlier prompt, modulo their number."""
    kept: int
    """How many of its tokens, modulo."""
    salt: str | None
    """None: the same as its."""
    blocks: tuple[int, ...]
    tail: tuple[int, ...]


prompts = st.builds(
    Prompt,
    like=anyone,
    kept=st.integers(0, 200),
    salt=st.sampled_from([None, None, None, "", "s"]),
    # One draw for each list: drawing is most of what a program costs.
    blocks=st.sampled_from([(), (0,), (1,), (0, 0), (0, 1), (0, 0, 0), (1, 0, 0), (0, 0, 0, 0), (0, 1, 0, 0)]),
    tail=st.sampled_from([(0,), (1,), (0, 0), (0, 1, 1)]),
)


def window_sets() -> st.SearchStrategy[tuple[int | None, ...]]:
    window = st.sampled_from([1, 2, 3, 5, 8, 17])
    if not adapter.supports("window"):
        return st.just((None,))
    return st.one_of(
        st.just((None,)),
        st.just((None,)),
        st.tuples(st.none(), window),
        st.tuples(window),
        st.tuples(window, st.none(), window),
    )


class GrowthMachine(RuleBasedStateMachine):
    """Sequences begin and grow, steps begin and land."""

    @initialize(
        block_size=st.sampled_from([1, 2, 3, 4, 4, 8, 16, 32]),
        num_blocks=st.integers(1, 24),
        windows=st.deferred(window_sets),
        caching=st.sampled_from([True, True, True, False]),
        pinned_share=st.sampled_from([0, 1, 2]),
    )
    def build(
        self, block_size: int, num_blocks: int, windows: tuple[int | None, ...], caching: bool, pinned_share: int
    ) -> None:
        caching = caching and adapter.supports("prefix")
        max_pinned = num_blocks * pinned_share // 2
        self.real = adapter.chosen()(
            num_blocks=num_blocks,
            block_size=block_size,
            windows=windows,
            prefix_caching=caching,
            max_pinned_blocks=max_pinned,
        )
        self.model = NaiveCache(num_blocks, block_size, windows, caching, max_pinned)
        self.parked: list[NaiveSequence] = []
        """Released, with a handle that may be admitted again."""
        self.past: list[tuple[str, list[int]]] = [("", [])]
        """Prompts that came before: later ones begin like them."""
        self.cells: dict[tuple[int, int], tuple[int, int]] = {}
        """The device's memory: (block, slot) -> (group, name of the prefix that ends there)."""
        self.in_flight: list[tuple[int, dict[NaiveSequence, int]]] = []
        self.step = 0
        self.now = 0.0
        self.gone_pins: list[Any] = []
        self.mirror: set[tuple[int, int]] = set()

    # A sequence begins

    @precondition(lambda self: len(self.model.live) < MOST_LIVE)
    @rule(prompt=prompts, chunk=st.integers(0, 200))
    def admit(self, prompt: Prompt, chunk: int) -> None:
        """A prompt comes in, and its first chunk is covered."""
        self._admit(self._open(prompt), chunk)

    @precondition(lambda self: len(self.model.live) < MOST_LIVE)
    @rule(prompt=prompts, then=st.sampled_from(["stays", "ends", "is aborted"]))
    def serve(self, prompt: Prompt, then: str) -> None:
        """A prompt comes in, is computed to its end and indexed. Then it stays, or it ends and leaves its blocks to the
        cache, or it does so while a step is in flight."""
        sequence = self._open(prompt)
        if not self._admit(sequence, -1):
            return
        self._run_to_the_end()
        if then == "is aborted":
            self.begin_step()
        if then != "stays":
            self._release(sequence)

    def _open(self, prompt: Prompt) -> NaiveSequence:
        old_salt, old_tokens = self.past[prompt.like % len(self.past)]
        tokens = old_tokens[: prompt.kept % (len(old_tokens) + 1)]
        for value in prompt.blocks:
            tokens = [*tokens, *[value] * self.model.block_size]
        sequence = NaiveSequence(salt=old_salt if prompt.salt is None else prompt.salt, tokens=[])
        sequence.extend([*tokens, *prompt.tail])
        sequence.handle = self.real.open(sequence.salt)
        return sequence

    @precondition(lambda self: self.parked and len(self.model.live) < MOST_LIVE)
    @rule(which=anyone, chunk=st.integers(0, 200))
    def admit_again(self, which: int, chunk: int) -> None:
        """A sequence that was preempted comes back, with the handle it had."""
        sequence = self.parked[which % len(self.parked)]
        if self._admit(sequence, chunk):
            self.parked.remove(sequence)

    @precondition(lambda self: self.parked and len(self.model.live) < MOST_LIVE)
    @rule(which=anyone, count=st.integers(1, 40))
    def start_over(self, which: int, count: int) -> None:
        """A sequence that was preempted comes back without looking for what is cached."""
        sequence = self.parked.pop(which % len(self.parked))
        sequence.ahead = [*sequence.tokens, *sequence.ahead]
        sequence.shorten(0)
        sequence.covered = sequence.written = sequence.stored_blocks = 0
        sequence.may_fill = False
        self.model.live.append(sequence)
        self._reserve(sequence, sequence.ahead[:count])

    def _admit(self, sequence: NaiveSequence, chunk: int) -> bool:
        model = self.model
        sequence.extend(sequence.ahead)
        sequence.ahead = []
        limit = (len(sequence.tokens) - 1) // model.block_size if model.caching else 0
        hits = model.match(sequence, limit)
        if adapter.supports("prefix"):
            found = self.real.match(sequence.handle, sequence.tokens)
            assert found == hits * model.block_size, (
                f"K5: {found} tokens matched, {hits * model.block_size} are indexed"
            )
        start = hits * model.block_size
        num_tokens = start + chunk % (len(sequence.tokens) - start) + 1
        expected = model.matched_tables(sequence, hits)
        num_new = (model.num_entries(num_tokens) - hits) * len(model.windows)
        num_idle = sum(block in model.idle for table in expected for block in table)
        fits = num_new + num_idle <= model.num_available()
        admitted = self.real.admit(sequence.handle, sequence.tokens, num_tokens)
        assert admitted == fits, f"K8: {num_new} new blocks and {num_idle} cached ones: admitted {admitted}"
        if not admitted:
            self._nothing_has_changed()
            return False
        tables = self._tables(sequence)
        assert [table[:hits] for table in tables] == expected, f"K5: the hit gave {tables}, {expected} is indexed"
        model.idle = [block for block in model.idle if not any(block in table for table in expected)]
        # The hit blocks are owned before new ones are handed out, or they could be evicted for them.
        sequence.tables = expected
        model.live.append(sequence)
        model.hand_out([self._block(block) for table in tables for block in table[hits:]])
        sequence.tables = tables
        sequence.covered = num_tokens
        sequence.written = start
        sequence.stored_blocks = hits
        sequence.may_fill = True
        self.past.append((sequence.salt, sequence.tokens.copy()))
        # The rest of the prompt comes in later chunks.
        sequence.ahead = sequence.tokens[num_tokens:]
        sequence.shorten(num_tokens)
        return True

    def _block(self, block: int | None) -> int:
        assert block is not None, "K7: a position to be written has no block"
        return block

    # A sequence grows

    @precondition(lambda self: self._may_reserve())
    @rule(which=anyone, token=st.integers(0, 1), count=st.integers(1, 9), blocks=st.integers(0, 2))
    def reserve(self, which: int, token: int, count: int, blocks: int) -> None:
        """A sequence gets room for tokens: some, and some blocks full."""
        sequences = self._may_reserve()
        new = [token] * (count + blocks * self.model.block_size)
        self._reserve(sequences[which % len(sequences)], new)

    @precondition(lambda self: self.model.live)
    @rule(token=st.integers(0, 1), steps=st.integers(1, 3), blocks=st.booleans())
    def decode(self, token: int, steps: int, blocks: bool) -> None:
        """Everyone gets a token, or a block full, in each of some steps that land at once."""
        for _ in range(steps):
            for sequence in self._may_reserve():
                self._reserve(sequence, [token] * (self.model.block_size if blocks else 1))
            self._run_to_the_end()

    def _reserve(self, sequence: NaiveSequence, wanted: list[int]) -> None:
        model = self.model
        new = sequence.following(wanted)
        num_tokens = len(sequence.tokens) + len(new)
        before = sequence.tables
        passed = [
            (group, place)
            for group in range(len(before))
            for place in range(min(model.first_visible(group, sequence.covered), len(before[group])))
            if before[group][place] is not None
        ]
        partial = sequence.covered % model.block_size != 0
        copied = [g for g, table in enumerate(before) if partial and self._must_copy(self._block(table[-1]))]
        num_new = model.num_entries(num_tokens) - len(before[0])
        needed = num_new * len(before) + len(copied)
        freed = 0 if model.begun > model.landed else sum(self._frees(before[g][p]) for g, p in passed)
        fits = needed <= model.num_available() + freed
        reserved = self.real.reserve(sequence.handle, num_tokens)
        assert reserved == fits, f"K8: {needed} blocks are needed: reserved {reserved}"
        if not reserved:
            self._nothing_has_changed()
            return
        tables = self._tables(sequence)
        self._leave_window(sequence, passed)
        last = len(before[0]) - 1
        fresh = []
        for group, table in enumerate(tables):
            kept = last if group in copied else last + 1
            assert table[:kept] == sequence.tables[group][:kept], f"K3, K12: {before[group]} became {table}"
            fresh += [self._block(block) for block in table[kept:]]
        model.hand_out(fresh)
        sequence_before = sequence.tables
        sequence.tables = tables
        for group, table in enumerate(sequence_before):
            if not partial:
                break
            source = self._block(table[last])
            if group in copied:
                target = self._block(tables[group][last])
                model.copies[target] = model.copies.get(source, source)
                model.give_back([source])
            else:
                model.unindex(source)
        sequence.grow(new)
        sequence.covered = num_tokens
        sequence.may_fill = True

    def _must_copy(self, block: int) -> bool:
        return self.model.count(block) > 1 or block in self.model.pinned()

    def _frees(self, block: int | None) -> bool:
        return block is not None and self.model.count(block) == 1 and block not in self.model.pinned()

    def _leave_window(self, sequence: NaiveSequence, passed: Sequence[tuple[int, int]]) -> None:
        gone = []
        tables = [list(table) for table in sequence.tables]
        for group, place in passed:
            gone.append(self._block(tables[group][place]))
            tables[group][place] = None
        sequence.tables = tables
        self.model.give_back(gone)

    @precondition(lambda self: any(sequence.may_fill for sequence in self.model.live))
    @rule(which=anyone, token=st.integers(0, 1), count=st.integers(1, 9))
    def fill(self, which: int, token: int, count: int) -> None:
        """A sequence uses what is left of its last block, which needs no asking since it last reserved."""
        sequences = [sequence for sequence in self.model.live if sequence.may_fill]
        sequence = sequences[which % len(sequences)]
        room = len(sequence.tables[0]) * self.model.block_size - len(sequence.tokens)
        sequence.grow(sequence.following([token] * min(count, room)))

    # Steps

    def _run_to_the_end(self) -> None:
        if len(self.in_flight) == MOST_IN_FLIGHT:
            self.land(stores=True)
        self.begin_step()
        while self.in_flight:
            self.land(stores=True)

    @precondition(lambda self: len(self.in_flight) < MOST_IN_FLIGHT)
    @rule()
    def begin_step(self) -> None:
        """The device copies, then writes every position that is not written yet."""
        model = self.model
        copies = self.real.take_copies() if adapter.supports("fork") else []
        assert {target: source for source, target in copies} == model.copies, f"K3: {copies} are not {model.copies}"
        assert len(copies) == len(model.copies), f"K3: a target is copied into twice in {copies}"
        model.copies.clear()
        slots = range(model.block_size)
        read = [(target, slot, self.cells.get((source, slot))) for source, target in copies for slot in slots]
        for target, slot, cell in read:
            self.cells.pop((target, slot), None)
            if cell is not None:
                self.cells[target, slot] = cell
        written: set[tuple[int, int]] = set()
        for sequence in model.live:
            for position in range(sequence.written, len(sequence.tokens)):
                self._write(sequence, position, written)
            sequence.written = len(sequence.tokens)
        self.step += 1
        landing = {sequence: sequence.written for sequence in model.live}
        self.in_flight.append((self.step, landing))
        model.begun = self.step
        if adapter.supports("limbo"):
            self.real.begin_step(self.step)
        if not adapter.supports("limbo"):
            self.land(stores=True)

    def _write(self, sequence: NaiveSequence, position: int, written: set[tuple[int, int]]) -> None:
        place, slot = divmod(position, self.model.block_size)
        for group, table in enumerate(sequence.tables):
            block = self._block(table[place])
            assert (block, slot) not in written, f"K4: slot {slot} of block {block} is written twice"
            assert self.model.count(block) == 1, f"K3: block {block} is shared and written"
            assert block not in self.model.index.values(), f"K3: block {block} is indexed and written"
            written.add((block, slot))
            self.cells[block, slot] = (group, sequence.trail[position])

    @precondition(lambda self: self.in_flight)
    @rule(stores=st.booleans())
    def land(self, stores: bool) -> None:
        """The oldest step lands; what it computed is indexed now or, where not `stores`, with a later one."""
        step, landing = self.in_flight.pop(0)
        if adapter.supports("limbo"):
            self.real.land(step)
        self.model.land(step)
        for sequence, num_computed in landing.items():
            if stores and sequence in self.model.live and adapter.supports("prefix"):
                self.real.store(sequence.handle, sequence.tokens, num_computed)
                self.model.store(sequence, num_computed)

    def _release(self, sequence: NaiveSequence) -> None:
        gone = self.model.release_order(sequence.tables, 0)
        self.real.release(sequence.handle)
        assert not any(self.real.tables(sequence.handle)), "K11: a released sequence names blocks"
        sequence.tables = [[] for _ in sequence.tables]
        self.model.live.remove(sequence)
        self.model.give_back(gone)
        for _, landing in self.in_flight:
            landing.pop(sequence, None)

    def _nothing_has_changed(self) -> None:
        available, expected = self.real.num_available(), self.model.num_available()
        assert available == expected, f"K8: {available} blocks are left of {expected} by an allocation that was not met"
        for sequence in self.model.live:
            assert self._tables(sequence) == sequence.tables, f"K8: {sequence.tables} changed and nothing was allocated"

    def _tables(self, sequence: NaiveSequence) -> list[Table]:
        return [list(table) for table in self.real.tables(sequence.handle)]

    # Choosing

    def _live(self, which: int) -> NaiveSequence:
        return self.model.live[which % len(self.model.live)]

    def _may_reserve(self) -> list[NaiveSequence]:
        """Once a step where there are windows, because they follow what was covered before; else at any time."""
        windowed = any(window is not None for window in self.model.windows)
        return [sequence for sequence in self.model.live if sequence.written >= sequence.covered or not windowed]

    def _written(self) -> list[NaiveSequence]:
        return [sequence for sequence in self.model.live if sequence.written == len(sequence.tokens)]
