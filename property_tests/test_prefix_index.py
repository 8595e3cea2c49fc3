"""The laws of content hashes and of the prefix index (kvcache/hashing.py, prefix.py), K5 taken apart.

K5a a block's hash is a function of the extra keys and of all tokens up to its end, and of nothing else
K5b different extra keys, or different tokens anywhere before, give different hashes
K5c the index finds the longest beginning of a chain that it holds, comparing what was hashed: a collision is not a hit
K5d a content is indexed once; what is removed is not found any more
K5e with several groups a hit is the longest that all can serve: full attention with every block, a window with its last
"""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from triolet.kvcache.group import KVGroup
from triolet.kvcache.hashing import HashChain, root_of
from triolet.kvcache.ids import BlockId
from triolet.kvcache.lookup import PrefixLookup
from triolet.kvcache.pool import BlockPool
from triolet.kvcache.prefix import PrefixIndex

from .adapter import operations

extra_keys = st.lists(st.one_of(st.text(max_size=3), st.binary(max_size=3), st.integers(-20, 20)), max_size=3).map(
    tuple
)
token_lists = st.lists(st.integers(0, 2**32 - 1), max_size=40)
few_tokens = st.lists(st.integers(0, 1), max_size=12)


def weak(preimage: bytes) -> bytes:
    """Two values only: nearly everything collides."""
    return bytes([sum(preimage) % 2])


@given(one=extra_keys, other=extra_keys)
def test_k5b_extra_keys_are_told_apart(
    one: tuple[str | int | bytes, ...], other: tuple[str | int | bytes, ...]
) -> None:
    """Roots are equal exactly when the keys are equal in type, value and order."""
    alike = [(type(key), key) for key in one] == [(type(key), key) for key in other]
    assert (root_of(one) == root_of(other)) == alike


@given(tokens=token_lists, block_size=st.integers(1, 8), cuts=st.lists(st.integers(0, 40), max_size=4))
def test_k5a_a_chain_extended_in_pieces_is_the_chain_made_at_once(
    tokens: list[int], block_size: int, cuts: list[int]
) -> None:
    """However a chain grew, was trimmed and was copied, its hashes are those of its tokens."""
    num_blocks = len(tokens) // block_size
    whole = HashChain(b"", block_size)
    whole.extend(tokens, num_blocks)
    chain = HashChain(b"", block_size)
    for cut in cuts:
        chain.extend(tuple(tokens), min(cut, num_blocks))
        chain = chain.copy()
        chain.trim(cut // 2)
    chain.extend(tokens, num_blocks)
    assert chain.hashes == whole.hashes
    assert chain.preimages == whole.preimages


@given(
    tokens=st.lists(st.integers(0, 1), min_size=1, max_size=24),
    place=st.integers(0, 23),
    block_size=st.integers(1, 4),
    token=st.integers(2, 9),
)
def test_k5b_one_changed_token_changes_every_hash_from_its_block_on(
    tokens: list[int], place: int, block_size: int, token: int
) -> None:
    """Hashes before the change are equal, those after it differ."""
    place %= len(tokens)
    changed = [*tokens[:place], token, *tokens[place + 1 :]]
    one, other = HashChain(b"", block_size), HashChain(b"", block_size)
    one.extend(tokens, len(tokens) // block_size)
    other.extend(changed, len(tokens) // block_size)
    alike = [mine == theirs for mine, theirs in zip(one.hashes, other.hashes, strict=True)]
    first = place // block_size
    assert alike == [index < first for index in range(len(alike))]


@settings(max_examples=10 * settings().max_examples)
@given(
    windows=st.lists(st.one_of(st.none(), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=3),
    block_size=st.integers(1, 2),
    limit=st.integers(0, 7),
    data=st.data(),
)
def test_k5e_a_hit_is_the_longest_that_every_group_can_serve(
    windows: list[int | None], block_size: int, limit: int, data: st.DataObject
) -> None:
    """Whatever blocks each group holds, one perhaps in limbo: the hit is the longest whose visible blocks are there."""
    chain = HashChain(b"", block_size)
    tokens = list(range(7 * block_size))
    chain.extend(tokens, 7)
    index = PrefixIndex(7 * len(windows), len(windows))
    pool = BlockPool(7 * len(windows), contents=index.hashes, evict=lambda block: None)
    blocks = pool.allocate(7 * len(windows)) or []
    held: list[dict[int, BlockId]] = []
    for group in range(len(windows)):
        # Most are there, or hardly any hit would be longer than nothing.
        gone = data.draw(st.sets(st.integers(0, 6), max_size=3), label=f"not held by group {group}")
        held.append({place: blocks[group * 7 + place] for place in range(7) if place not in gone})
        for place, block in held[group].items():
            index.add(group, block, chain.hashes[place], chain.preimages[place])
    in_limbo = data.draw(st.sets(st.sampled_from(blocks), max_size=1), label="in limbo")
    pool.begin_step(1)
    pool.release(in_limbo)

    def serves(group: int, length: int) -> bool:
        window = windows[group]
        first = 0 if window is None else max(0, length * block_size - window + 1) // block_size
        return all(held[group].get(place, None) not in {None, *in_limbo} for place in range(first, length))

    groups = tuple(KVGroup(sliding_window=window) for window in windows)
    match = PrefixLookup(index, pool, groups, block_size).longest(HashChain(b"", block_size), tokens, limit)
    longest = max(n for n in range(limit + 1) if all(serves(group, n) for group in range(len(windows))))
    assert match.num_tokens == longest * block_size
    for group, table in enumerate(match.tables):
        first = groups[group].first_visible_block(longest * block_size, block_size)
        assert table == [held[group][place] if place >= first else None for place in range(longest)]


class IndexMachine(RuleBasedStateMachine):
    """An index beside a dictionary, with a digest that collides nearly always or never."""

    @initialize(num_groups=st.integers(1, 3), collides=st.booleans(), block_size=st.integers(1, 3))
    def build(self, num_groups: int, collides: bool, block_size: int) -> None:
        self.block_size = block_size
        self.num_groups = num_groups
        self.digest = weak if collides else bytes
        self.index = PrefixIndex(8, num_groups)
        self.held: dict[tuple[int, bytes], tuple[BlockId, bytes]] = {}
        """(group, hash) -> (block, preimage)"""

    def _chain(self, tokens: list[int]) -> HashChain:
        chain = HashChain(b"", self.block_size, self.digest)
        chain.extend(tokens, len(tokens) // self.block_size)
        return chain

    @rule(group=st.integers(0, 2), tokens=few_tokens, blocks=st.permutations(range(8)))
    def add(self, group: int, tokens: list[int], blocks: list[int]) -> None:
        """A sequence stores its blocks; those that are indexed, or whose hash is taken, are passed over."""
        group %= self.num_groups
        chain = self._chain(tokens)
        for content_hash, preimage, number in zip(chain.hashes, chain.preimages, blocks, strict=False):
            block = BlockId(number)
            free = (group, content_hash) not in self.held and all(block != held for held, _ in self.held.values())
            assert self.index.add(group, block, content_hash, preimage) == free, "K5d: indexed once"
            if free:
                self.held[group, content_hash] = (block, preimage)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99))
    def remove(self, which: int) -> None:
        key = list(self.held)[which % len(self.held)]
        block, _ = self.held.pop(key)
        assert self.index.remove(block) == key

    @rule(group=st.integers(0, 2), tokens=few_tokens)
    def look(self, group: int, tokens: list[int]) -> None:
        group %= self.num_groups
        chain = self._chain(tokens)
        expected = []
        for content_hash, preimage in zip(chain.hashes, chain.preimages, strict=True):
            block, held = self.held.get((group, content_hash), (None, b""))
            found = self.index.get(group, content_hash, preimage)
            assert found == (block if held == preimage else None), "K5c: a collision is not a hit"
            expected.append(found)
        if None in expected:
            del expected[expected.index(None) :]
        assert self.index.leading(group, chain.hashes, chain.preimages) == expected, "K5c: the longest beginning"

    @invariant()
    def laws(self) -> None:
        operations["prefix index"] += 1
        assert len(self.index) == len(self.held)
        hashes = {block: content_hash for (_, content_hash), (block, _) in self.held.items()}
        assert self.index.hashes == [hashes.get(BlockId(block)) for block in range(8)]
        self.index.check()


TestIndex = IndexMachine.TestCase
