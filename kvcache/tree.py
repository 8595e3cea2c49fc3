"""The prefix index as the tree that it is: kept as a copy from its events (K14), told as an outline.

Pure. A node is a full block's content under its parent; that it can be matched in one group is enough. A node whose
content has been evicted stays while others stand on it. Taking an event in is O(blocks named in it); an outline looks
at a bounded number of nodes, the newest branches first.
"""

from collections.abc import Callable, Iterator

import attrs

from .events import BlocksEvicted, BlocksStored, CacheEvent
from .ids import BlockId


@attrs.define(eq=False, slots=True)
class _Node:
    parent: "_Node | None"
    parent_hash: bytes
    content_hash: bytes
    token_ids: tuple[int, ...]
    blocks: dict[int, BlockId]
    """By group."""
    children: "dict[bytes, _Node]"


@attrs.frozen(kw_only=True)
class Branch:
    """A run of blocks with no fork between them."""

    depth: int
    """Branches above it."""
    content_hash: bytes
    """Of its first block."""
    token_ids: tuple[int, ...]
    """Of its first block."""
    num_blocks: int
    num_tokens: int
    refcount: int
    """Of its first block: how many sequences stand on it now."""
    is_salted: bool
    """Only requests with the same extra keys find it."""
    is_cut: bool
    """There is more below than an outline looks at."""


@attrs.frozen(kw_only=True)
class Outline:
    """Branches in the order of a tree that is read from the top."""

    branches: tuple[Branch, ...]
    num_blocks: int
    """Of the whole tree."""
    is_whole: bool


class PrefixTree:
    """A copy of one index. `apply` is a listener for `KVCacheManager.subscribe`."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, _Node] = {}
        self._roots: dict[bytes, _Node] = {}
        self._adrift: dict[bytes, dict[bytes, _Node]] = {}
        """Roots that stand on a block which is not here, by its hash: they go back under it when it comes."""
        self.version = 0
        """Changes with the tree."""

    def apply(self, event: CacheEvent) -> None:
        self.version += 1
        if isinstance(event, BlocksStored):
            columns = (event.blocks, event.hashes, event.parent_hashes, event.token_ids)
            for block, content_hash, parent_hash, token_ids in zip(*columns, strict=True):
                self.add(event.group, block, content_hash, parent_hash, token_ids)
        else:
            self._evict(event)

    def add(
        self, group: int, block: BlockId, content_hash: bytes, parent_hash: bytes, token_ids: tuple[int, ...]
    ) -> None:
        """A content that can be matched, in any order. Told twice is as good as once."""
        node = self._nodes.get(content_hash)
        if node is None:
            parent = self._nodes.get(parent_hash)
            children = self._adrift.pop(content_hash, {})
            node = _Node(parent, parent_hash, content_hash, token_ids, {}, children)
            self._nodes[content_hash] = node
            for child in children.values():
                child.parent = node
                del self._roots[child.content_hash]
            if parent is not None:
                parent.children[content_hash] = node
            else:
                self._roots[content_hash] = node
                self._adrift.setdefault(parent_hash, {})[content_hash] = node
        node.blocks[group] = block

    def _evict(self, event: BlocksEvicted) -> None:
        for content_hash in event.hashes:
            node = self._nodes.get(content_hash)
            if node is None:
                continue
            node.blocks.pop(event.group, None)
            while node is not None and not node.blocks and not node.children:
                self._remove(node)
                node = node.parent

    def _remove(self, node: _Node) -> None:
        del self._nodes[node.content_hash]
        if node.parent is not None:
            del node.parent.children[node.content_hash]
            return
        del self._roots[node.content_hash]
        adrift = self._adrift[node.parent_hash]
        del adrift[node.content_hash]
        if not adrift:
            del self._adrift[node.parent_hash]

    def outline(self, *, refcount: Callable[[BlockId], int], max_branches: int, max_visits: int) -> Outline:
        """At most `max_branches`, found by looking at no more than `max_visits` nodes."""
        branches: list[Branch] = []
        num_visits = 0
        stack = [(0, root, _is_salt(root.parent_hash)) for root in self._roots.values()]
        while stack and len(branches) < max_branches and num_visits < max_visits:
            depth, first, is_salted = stack.pop()
            last, num_blocks, num_tokens = first, 0, 0
            for node in _run(first):
                last = node
                num_visits += 1
                num_blocks += bool(node.blocks)
                num_tokens += len(node.token_ids)
                if num_visits >= max_visits:
                    break
            branches.append(
                Branch(
                    depth=depth,
                    content_hash=first.content_hash,
                    token_ids=first.token_ids,
                    num_blocks=num_blocks,
                    num_tokens=num_tokens,
                    refcount=max(map(refcount, first.blocks.values()), default=0),
                    is_salted=is_salted,
                    is_cut=num_visits >= max_visits and bool(last.children),
                )
            )
            if len(last.children) > 1:
                stack += ((depth + 1, child, is_salted) for child in last.children.values())
        is_whole = not stack and num_visits < max_visits
        return Outline(branches=tuple(branches), num_blocks=len(self._nodes), is_whole=is_whole)


def _is_salt(parent_hash: bytes) -> bool:
    """What a root stands on: nothing, extra keys (kvcache/hashing.py), or a block that has been evicted."""
    return parent_hash[1:2].isdigit() and parent_hash[:1] in (b"b", b"s", b"i") and b":" in parent_hash


def _run(node: _Node) -> Iterator[_Node]:
    """From a node down to the next fork or the end."""
    while True:
        yield node
        if len(node.children) != 1:
            return
        (node,) = node.children.values()
