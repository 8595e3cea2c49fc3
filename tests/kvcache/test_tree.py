"""The tree of prefixes follows the index, and its outline is bounded."""

from collections.abc import Sequence

from triolet.kvcache.events import BlocksEvicted
from triolet.kvcache.ids import BlockId
from triolet.kvcache.manager import KVCacheManager
from triolet.kvcache.tree import Outline, PrefixTree


def store(cache: KVCacheManager, tokens: Sequence[int], *keys: str) -> None:
    """As when a request with these tokens has come and gone."""
    blocks = cache.open(extra_keys=keys)
    assert cache.admit(blocks, cache.match(blocks, tokens), len(tokens))
    cache.store(blocks, tokens, len(tokens))
    cache.release(blocks)


def watched(num_blocks: int = 16) -> tuple[KVCacheManager, PrefixTree]:
    cache, tree = KVCacheManager(num_blocks=num_blocks, block_size=2), PrefixTree()
    cache.subscribe(tree.apply)
    return cache, tree


def outline(cache: KVCacheManager, tree: PrefixTree, *, branches: int = 99, visits: int = 99) -> Outline:
    return tree.outline(refcount=cache.view.refcount, max_branches=branches, max_visits=visits)


def shape(told: Outline) -> list[tuple[int, tuple[int, ...], int, int]]:
    return [(branch.depth, branch.token_ids, branch.num_blocks, branch.num_tokens) for branch in told.branches]


def test_a_run_without_a_fork_is_one_branch() -> None:
    """Three prompts: two go apart after two blocks, the third has nothing in common with them."""
    cache, tree = watched()
    store(cache, [1, 2, 3, 4, 5, 6])
    store(cache, [1, 2, 3, 4, 7, 8, 9, 9])
    store(cache, [8, 8])
    told = outline(cache, tree)
    assert shape(told) == [(0, (8, 8), 1, 2), (0, (1, 2), 2, 4), (1, (7, 8), 2, 4), (1, (5, 6), 1, 2)]
    assert (told.num_blocks, told.is_whole) == (6, True)
    assert not any(branch.is_salted or branch.is_cut for branch in told.branches)


def test_a_branch_tells_who_stands_on_it_and_whether_others_may() -> None:
    """The first block's references; a salted prefix is marked, its children too, and the salt is not told."""
    cache, tree = watched()
    held = cache.open(extra_keys=("secret",))
    cache.reserve(held, 4)
    cache.store(held, [1, 2, 3, 4], 4)
    store(cache, [1, 2])
    told = outline(cache, tree)
    assert [(branch.refcount, branch.is_salted, branch.num_blocks) for branch in told.branches] == [
        (0, False, 1),
        (1, True, 2),
    ]
    assert "secret" not in repr(told)


def test_what_is_evicted_leaves_the_tree() -> None:
    """Leaves first; what others stand on stays until they are gone; an unknown one changes nothing."""
    cache, tree = watched(num_blocks=3)
    store(cache, [1, 2, 3, 4])
    version = tree.version
    store(cache, [5, 6, 7, 8])
    assert tree.version > version
    assert shape(outline(cache, tree)) == [(0, (5, 6), 2, 4), (0, (1, 2), 1, 2)]
    assert cache.reset()
    assert outline(cache, tree) == Outline(branches=(), num_blocks=0, is_whole=True)
    late = PrefixTree()
    cache.subscribe(late.apply)
    store(cache, [1, 2])
    assert cache.reset()
    assert outline(cache, late).num_blocks == 0


def test_an_evicted_parent_stays_while_a_child_stands_on_it() -> None:
    """It counts no block then; told twice, a content is there once; an unknown parent makes a root."""
    tree = PrefixTree()
    tree.add(0, BlockId(0), b"p" * 32, b"", (1, 2))
    tree.add(0, BlockId(1), b"c" * 32, b"p" * 32, (3, 4))
    tree.add(0, BlockId(1), b"c" * 32, b"p" * 32, (3, 4))
    tree.add(0, BlockId(2), b"o" * 32, b"x" * 32, (5, 6))
    cache = KVCacheManager(num_blocks=4, block_size=2)
    assert shape(outline(cache, tree)) == [(0, (5, 6), 1, 2), (0, (1, 2), 2, 4)]
    tree.apply(BlocksEvicted(group=0, blocks=(BlockId(0),), hashes=(b"p" * 32,)))
    assert shape(outline(cache, tree)) == [(0, (5, 6), 1, 2), (0, (1, 2), 1, 4)]
    tree.apply(BlocksEvicted(group=0, blocks=(BlockId(1),), hashes=(b"c" * 32,)))
    tree.apply(BlocksEvicted(group=0, blocks=(BlockId(1),), hashes=(b"c" * 32,)))
    assert shape(outline(cache, tree)) == [(0, (5, 6), 1, 2)]


def test_children_may_come_before_their_parents() -> None:
    """As when a copy begins with what the index holds already: the tree is the same; what never comes is missing."""
    tree, cache = PrefixTree(), KVCacheManager(num_blocks=4, block_size=2)
    tree.add(0, BlockId(2), b"c" * 32, b"p" * 32, (5, 6))
    tree.add(0, BlockId(1), b"d" * 32, b"p" * 32, (3, 4))
    assert [branch.is_salted for branch in outline(cache, tree).branches] == [False, False]
    tree.add(0, BlockId(0), b"p" * 32, b"", (1, 2))
    assert shape(outline(cache, tree)) == [(0, (1, 2), 1, 2), (1, (3, 4), 1, 2), (1, (5, 6), 1, 2)]
    for block, content_hash in enumerate((b"p" * 32, b"d" * 32, b"c" * 32)):
        tree.apply(BlocksEvicted(group=0, blocks=(BlockId(block),), hashes=(content_hash,)))
    assert outline(cache, tree).num_blocks == 0


def test_an_outline_is_bounded() -> None:
    """No more branches than asked for, and no more nodes looked at; it says so."""
    cache, tree = watched(num_blocks=64)
    for first in range(10):
        store(cache, [first, first, 50, 50])
    told = outline(cache, tree, branches=3)
    assert (len(told.branches), told.is_whole, told.num_blocks) == (3, False, 20)
    told = outline(cache, tree, visits=3)
    assert (len(told.branches), told.is_whole) == (2, False)
    assert [branch.is_cut for branch in told.branches] == [False, True]
    assert [branch.num_blocks for branch in told.branches] == [2, 1]
