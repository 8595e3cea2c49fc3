"""The naive model of the allocator: what the laws K1 to K14 say, as slowly and plainly as they can be said.

It keeps lists and scans them. It does not choose block numbers: it is told which blocks the allocator handed out and
says whether it may have (`hand_out`). A content is named by `name_of`: two prefixes have one name exactly when they
have the same salt and the same tokens, without any hash.
"""

from collections.abc import Iterable, Sequence

import attrs

Name = int
Table = list[int | None]

_names: dict[tuple[object, int], Name] = {}


def name_of(parent: object, token: int) -> Name:
    """The name of the prefix `parent` (a name, or the salt) followed by `token`."""
    return _names.setdefault((parent, token), len(_names))


@attrs.define(eq=False)
class NaiveSequence:
    """One sequence. `[0, written)` has gone to the device, `[written, len(tokens))` goes with the next step."""

    salt: str
    tokens: list[int]
    ahead: list[int] = attrs.field(factory=list)
    """Tokens of the prompt that come after `tokens` and are not covered yet."""
    handle: object = None
    tables: list[Table] = attrs.field(factory=list)
    covered: int = 0
    """What was last asked for; the tokens may reach beyond it, up to the end of the last block, where may_fill."""
    written: int = 0
    stored_blocks: int = 0
    may_fill: bool = False
    trail: list[Name] = attrs.field(factory=list)
    """trail[p] names the prefix that ends with position p."""

    def extend(self, tokens: Iterable[int]) -> None:
        self.tokens.extend(tokens)
        self.name()

    def following(self, wanted: list[int]) -> list[int]:
        """As many tokens as are wanted, those of the prompt first."""
        return [*self.ahead[: len(wanted)], *wanted[len(self.ahead) :]]

    def grow(self, tokens: list[int]) -> None:
        """Take tokens that came from `following`."""
        self.ahead = self.ahead[len(tokens) :]
        self.extend(tokens)

    def shorten(self, length: int) -> None:
        del self.tokens[length:]
        del self.trail[length:]

    def name(self) -> None:
        for token in self.tokens[len(self.trail) :]:
            self.trail.append(name_of(self.trail[-1] if self.trail else self.salt, token))


@attrs.define(eq=False)
class NaivePin:
    blocks: list[int]
    expires_at: float | None
    real: object


class NaiveCache:
    """The state that the laws speak of. Block states: owned (a table names it), limbo, cached (in `index`), free."""

    def __init__(
        self, num_blocks: int, block_size: int, windows: tuple[int | None, ...], caching: bool, max_pinned: int
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.windows = windows
        self.caching = caching
        self.max_pinned = max_pinned
        self.live: list[NaiveSequence] = []
        self.index: dict[tuple[int, Name], int] = {}
        self.idle: list[int] = []
        """Cached and not pinned, least recently used first."""
        self.limbo: list[tuple[int, int]] = []
        self.pins: list[NaivePin] = []
        self.copies: dict[int, int] = {}
        """Target -> source of the copies due before the next step writes."""
        self.begun = 0
        self.landed = 0

    # What there is

    def count(self, block: int) -> int:
        """K2: how many table entries name the block."""
        return sum(table.count(block) for sequence in self.live for table in sequence.tables)

    def owned(self) -> set[int]:
        return {b for sequence in self.live for table in sequence.tables for b in table if b is not None}

    def cached(self) -> set[int]:
        return set(self.index.values()) - self.owned() - self.in_limbo()

    def in_limbo(self) -> set[int]:
        return {block for block, _ in self.limbo}

    def pinned(self) -> set[int]:
        return {block for pin in self.pins for block in pin.blocks}

    def num_free(self) -> int:
        """K1: what is neither owned, nor in limbo, nor cached."""
        return self.num_blocks - len(self.owned()) - len(self.limbo) - len(self.cached())

    def num_available(self) -> int:
        return self.num_free() + len(self.idle)

    def num_entries(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def first_visible(self, group: int, position: int) -> int:
        """K12: the first block that the query at `position` sees."""
        window = self.windows[group]
        return 0 if window is None else max(0, position - window + 1) // self.block_size

    # The prefix index

    def match(self, sequence: NaiveSequence, num_blocks: int) -> int:
        """K5: the most leading blocks, at most `num_blocks`, that all groups can see in the index."""
        while num_blocks and not all(
            self._found(group, sequence, place) is not None
            for group in range(len(self.windows))
            for place in range(self.first_visible(group, num_blocks * self.block_size), num_blocks)
        ):
            num_blocks -= 1
        return num_blocks

    def matched_tables(self, sequence: NaiveSequence, num_blocks: int) -> list[Table]:
        return [
            [
                None
                if place < self.first_visible(group, num_blocks * self.block_size)
                else self._found(group, sequence, place)
                for place in range(num_blocks)
            ]
            for group in range(len(self.windows))
        ]

    def _found(self, group: int, sequence: NaiveSequence, place: int) -> int | None:
        block = self.index.get((group, sequence.trail[(place + 1) * self.block_size - 1]))
        return None if block in self.in_limbo() else block

    def store(self, sequence: NaiveSequence, num_computed: int) -> None:
        """A content is indexed once, with the first block that has it."""
        sequence.covered = max(sequence.covered, num_computed)
        if not self.caching:
            return
        for place in range(sequence.stored_blocks, num_computed // self.block_size):
            name = sequence.trail[(place + 1) * self.block_size - 1]
            for group, table in enumerate(sequence.tables):
                block = table[place]
                if block is not None and (group, name) not in self.index and block not in self.index.values():
                    self.index[group, name] = block
            sequence.stored_blocks = place + 1

    def unindex(self, block: int) -> None:
        self.index = {key: held for key, held in self.index.items() if held != block}

    # Blocks come and go

    def hand_out(self, blocks: Sequence[int]) -> None:
        """The allocator gave these to a sequence that did not have them: AssertionError says why it may not have."""
        assert len(set(blocks)) == len(blocks), f"K4: {blocks} are handed out twice"
        for block in blocks:
            assert 0 <= block < self.num_blocks, f"K1: there is no block {block}"
            assert block not in self.owned(), f"K2: block {block} is handed out and has an owner"
            assert block not in self.in_limbo(), f"K9: block {block} is handed out, a step in flight may name it"
        num_evicted = max(0, len(blocks) - self.num_free())
        expected = self.idle[:num_evicted]
        evicted = [block for block in blocks if block in self.cached()]
        assert sorted(evicted) == sorted(expected), (
            f"K6: {evicted} are evicted where {expected} are least recently used"
        )
        for block in expected:
            self.idle.remove(block)
            self.unindex(block)

    def give_back(self, blocks: Iterable[int]) -> None:
        """Table entries that named these are gone; the first is the first to be evicted (K6)."""
        for block in blocks:
            if self.count(block):
                continue
            self.copies.pop(block, None)
            if self.begun > self.landed:
                self.limbo.append((block, self.begun))
            else:
                self._settle(block)

    def _settle(self, block: int) -> None:
        if block in self.index.values() and block not in self.pinned():
            self.idle.append(block)

    def land(self, step: int) -> None:
        """K9: what waited for this step, or an earlier one, is free or cached now."""
        self.landed = step
        landed = [block for block, tag in self.limbo if tag <= step]
        self.limbo = [(block, tag) for block, tag in self.limbo if tag > step]
        for block in landed:
            self._settle(block)

    def release_order(self, tables: Sequence[Table], first: int) -> list[int]:
        """K6: the entries from `first` on, tail before head, the groups side by side."""
        places = range(len(tables[0]) - 1, first - 1, -1)
        return [block for place in places for table in tables if (block := table[place]) is not None]

    # Pins

    def pin(self, blocks: list[int], expires_at: float | None, real: object) -> None:
        self.pins.append(NaivePin(blocks, expires_at, real))
        self.idle = [block for block in self.idle if block not in blocks]

    def unpin(self, pin: NaivePin) -> None:
        self.pins.remove(pin)
        for block in pin.blocks:
            if block not in self.pinned() and block in self.cached():
                self.idle.append(block)
