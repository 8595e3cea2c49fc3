"""The other half of the rules: forks, truncation, the ends of sequences, pins and reset. See cache_machine.py."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from . import adapter
from .cache_machine import MOST_LIVE, GrowthMachine, anyone
from .naive_cache import NaiveSequence


class CacheMachine(GrowthMachine):
    """All rules; the laws are invariants of the class in test_manager.py."""

    # Forks, and ends

    @precondition(lambda self: adapter.supports("fork") and self._written() and len(self.model.live) < MOST_LIVE)
    @rule(which=anyone)
    def fork(self, which: int) -> None:
        """A sequence whose positions have all been written becomes two."""
        parents = self._written()
        parent = parents[which % len(parents)]
        child = NaiveSequence(
            salt=parent.salt,
            tokens=parent.tokens.copy(),
            ahead=parent.ahead.copy(),
            handle=self.real.fork(parent.handle),
            covered=parent.covered,
            written=parent.written,
            stored_blocks=parent.stored_blocks,
            trail=parent.trail.copy(),
        )
        child.tables = self._tables(child)
        assert child.tables == parent.tables, f"K3: a fork of {parent.tables} has {child.tables}"
        parent.may_fill = False
        self.model.live.append(child)
        for _, landing in self.in_flight:
            if parent in landing:
                landing[child] = landing[parent]

    @precondition(lambda self: adapter.supports("truncate") and self.model.live)
    @rule(which=anyone, back=st.integers(0, 40))
    def truncate(self, which: int, back: int) -> None:
        """Speculation was wrong: the last tokens are taken back."""
        model = self.model
        sequence = self._live(which)
        length = max(0, len(sequence.tokens) - back)
        kept = model.num_entries(length)
        for group, table in enumerate(sequence.tables):
            if None in table[model.first_visible(group, length) : kept]:
                return  # a window that has moved on cannot be taken back
        gone = model.release_order(sequence.tables, kept)
        self.real.truncate(sequence.handle, length)
        tables = self._tables(sequence) if length else [[] for _ in sequence.tables]
        assert tables == [table[:kept] for table in sequence.tables], f"K10: {sequence.tables} became {tables}"
        sequence.tables = tables
        model.give_back(gone)
        sequence.shorten(length)
        sequence.ahead = []
        sequence.covered = length
        sequence.written = min(sequence.written, length)
        sequence.stored_blocks = min(sequence.stored_blocks, length // model.block_size)
        sequence.may_fill = False
        for _, landing in self.in_flight:
            if sequence in landing:
                landing[sequence] = min(landing[sequence], length)

    @precondition(lambda self: self.model.live)
    @rule(which=anyone, parks=st.booleans())
    def release(self, which: int, parks: bool) -> None:
        """A sequence ends, is aborted or preempted, at any moment."""
        sequence = self._live(which)
        self._release(sequence)
        if parks and sequence.tokens:
            self.parked.append(sequence)

    # Pins and reset

    @precondition(lambda self: adapter.supports("pin") and adapter.supports("prefix") and self.model.index)
    @rule(like=anyone, kept=st.integers(0, 200), lifetime=st.sampled_from([None, 1.0, 3.0]))
    def pin(self, like: int, kept: int, lifetime: float | None) -> None:
        """A prefix of an earlier prompt, or as much of it as is cached, is to be kept."""
        salt, tokens = self.past[like % len(self.past)]
        sequence = NaiveSequence(salt=salt, tokens=[])
        sequence.extend(tokens[: len(tokens) - kept % (len(tokens) + 1)])
        model = self.model
        hits = model.match(sequence, len(sequence.tokens) // model.block_size if model.caching else 0)
        blocks = model.release_order(model.matched_tables(sequence, hits), 0)
        fits = len(model.pinned() | set(blocks)) <= model.max_pinned
        expires_at = None if lifetime is None else self.now + lifetime
        pin = self.real.pin(sequence.tokens, salt, expires_at)
        assert (pin is not None) == fits, f"K13: {len(blocks)} blocks, limit {model.max_pinned}: pinned {pin}"
        if pin is not None:
            model.pin(blocks, expires_at, pin)

    @precondition(lambda self: adapter.supports("pin") and (self.model.pins or self.gone_pins))
    @rule(which=anyone)
    def unpin(self, which: int) -> None:
        """A pin is given up; one that is gone already stays gone."""
        if self.model.pins:
            pin = self.model.pins[which % len(self.model.pins)]
            assert self.real.unpin(pin.real), "K13: a pin is gone before its time"
            self.model.unpin(pin)
            self.gone_pins.append(pin.real)
        else:
            assert not self.real.unpin(self.gone_pins[which % len(self.gone_pins)]), "K13: a pin that was gone is back"

    @precondition(lambda self: adapter.supports("pin") and (self.model.pins or self.step % 4 == 0))
    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0]))
    def expire(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        due = [pin for pin in self.model.pins if pin.expires_at is not None and pin.expires_at <= self.now]
        due.sort(key=lambda pin: pin.expires_at or 0.0)
        assert self.real.expire(self.now) == len(due), "K13: pins expire at their time"
        for pin in due:
            self.model.unpin(pin)
            self.gone_pins.append(pin.real)

    # Not all the time, or there would be little to forget.
    @precondition(lambda self: adapter.supports("reset") and self.model.index and self.step % 3 == 0)
    @rule()
    def reset(self) -> None:
        """Everything cached is to be forgotten, which waits until nobody holds a block."""
        model = self.model
        idle = not model.owned() and not model.limbo
        assert self.real.reset() == idle, f"reset with {len(model.owned())} blocks owned, {len(model.limbo)} in limbo"
        if idle:
            model.index.clear()
            model.idle.clear()
            self.gone_pins += [pin.real for pin in model.pins]
            model.pins.clear()
