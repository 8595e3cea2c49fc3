"""The engine from inside, for whoever shows it: requests, blocks, prefixes, at one moment.

Imports no trio. It reads the scheduler, its cache and the registry and changes nothing; all calls come from the event
loop's thread, between two steps of the scheduler loop, so what they see belongs together. Nothing is kept and nothing
is done between two looks, but while somebody follows the prefixes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import attrs

from ..kvcache.ids import BlockId
from ..kvcache.manager import KVCacheManager
from ..kvcache.tree import Outline, PrefixTree
from ..kvcache.view import NUM_COLOURS, BlockCounts, BlockSeen
from .core.ids import RequestId
from .core.request import Group, Sequence, State
from .core.scheduler import Scheduler
from .registry import OpenRequest, Registry, Stage
from .stats import EngineStats

__all__ = ["BlockTold", "Inside", "Look", "Outline", "Prefixes", "RequestSeen"]

REQUESTS_MAX = 256
"""Most requests that a look tells about: those that hold blocks, then the longest waiting."""

BLOCKS_MAX = 64
"""Most blocks that are told about at a time."""

FILL_SLICE = 2048
"""Blocks that a copy of the prefix index is begun with at a time: under 10 ms."""


@attrs.frozen(kw_only=True)
class RequestSeen:
    """An open request."""

    id: str
    """Unique among those that are open."""
    name: str
    """What its client calls it."""
    state: str
    """tokenizing, waiting, prefill, decode, or preempted."""
    colour: int | None
    """Of its blocks in the map; None: it holds none."""
    num_prompt_tokens: int
    num_cached_tokens: int
    num_computed_tokens: int
    num_output_tokens: int
    max_tokens: int | None
    num_choices: int
    num_blocks: int
    num_preemptions: int
    arrival_time: float
    first_token_time: float | None


@attrs.frozen(kw_only=True)
class Look:
    """The engine at one moment."""

    stats: EngineStats
    cells: bytearray
    """A byte for each block; see kvcache/view.py."""
    counts: BlockCounts
    requests: tuple[RequestSeen, ...]
    num_more_requests: int
    """That are open too, and not told about."""
    token_budget: int
    """Most tokens of a step."""
    max_num_seqs: int


@attrs.frozen(kw_only=True)
class BlockTold:
    """A block and what is in it."""

    seen: BlockSeen
    token_ids: tuple[int, ...]
    """Those that are known: none of a block that is free."""
    owners: tuple[str, ...]
    """Names of the requests whose tables name it."""


class Inside:
    """One engine's."""

    def __init__(
        self, scheduler: Scheduler, cache: KVCacheManager, registry: Registry, read_stats: Callable[[], EngineStats]
    ) -> None:
        self._scheduler = scheduler
        self._cache = cache
        self._registry = registry
        self._read_stats = read_stats
        self._colours: dict[RequestId, int] = {}

    @property
    def num_blocks(self) -> int:
        return self._cache.num_blocks

    @property
    def block_size(self) -> int:
        return self._cache.block_size

    def look(self) -> Look:
        """O(blocks that are not free + open requests), in plain Python: a tenth of a microsecond for a block."""
        groups = self._scheduler.groups
        self._paint(groups)
        tables = (
            (self._colours[request_id], table)
            for request_id, group in groups.items()
            for sequence in group.sequences
            for table in sequence.blocks.tables
            if table
        )
        cells, counts = self._cache.view.cells(tables)
        limits = self._scheduler.config
        seen = self._requests(groups)
        return Look(
            stats=self._read_stats(),
            cells=cells,
            counts=counts,
            requests=seen,
            num_more_requests=self._registry.num_open - len(seen),
            token_budget=limits.max_num_batched_tokens,
            max_num_seqs=limits.max_num_seqs,
        )

    def _paint(self, groups: dict[RequestId, Group]) -> None:
        """A colour for each request that holds blocks, its own as long as there are enough."""
        holding = [request_id for request_id, group in groups.items() if _num_blocks(group)]
        kept = {request_id: self._colours[request_id] for request_id in holding if request_id in self._colours}
        for request_id in holding:
            if request_id not in kept:
                used = set(kept.values())
                unused = (colour for colour in range(NUM_COLOURS) if colour not in used)
                kept[request_id] = next(unused, len(kept) % NUM_COLOURS)
        self._colours = kept

    def _requests(self, groups: dict[RequestId, Group]) -> tuple[RequestSeen, ...]:
        ids = [*self._colours, *(other for other in islice(groups, REQUESTS_MAX) if other not in self._colours)]
        chosen = [request for request_id in ids if (request := self._registry.get(request_id)) is not None]
        chosen += islice((other for other in self._registry.open_requests if other.id not in groups), REQUESTS_MAX)
        return tuple(self._told(request, groups.get(request.id)) for request in chosen[:REQUESTS_MAX])

    def _told(self, request: OpenRequest, group: Group | None) -> RequestSeen:
        story = request.story
        sequences = group.sequences if group is not None else []
        return RequestSeen(
            id=request.id,
            name=story.name,
            state=_state_of(request, group),
            colour=self._colours.get(request.id),
            num_prompt_tokens=request.num_prompt_tokens,
            num_cached_tokens=story.num_cached_tokens,
            num_computed_tokens=max((sequence.num_computed for sequence in sequences), default=0),
            num_output_tokens=story.num_output_tokens,
            max_tokens=story.max_tokens,
            num_choices=story.num_choices,
            num_blocks=_num_blocks(group) if group is not None else 0,
            num_preemptions=story.num_preemptions,
            arrival_time=request.arrival_time,
            first_token_time=story.first_token_time,
        )

    def blocks(self, first: int, count: int) -> tuple[BlockTold, ...]:
        """Up to BLOCKS_MAX blocks from `first` on, as far as there are any."""
        numbers = range(max(first, 0), min(first + min(count, BLOCKS_MAX), self._cache.num_blocks))
        owners: dict[int, list[tuple[Sequence, int]]] = {number: [] for number in numbers}
        for group in self._scheduler.groups.values():
            for sequence in group.sequences:
                for table in sequence.blocks.tables:
                    for place, block in enumerate(table):
                        if block is not None and block in owners:
                            owners[block].append((sequence, place))
        return tuple(self._block(BlockId(number), owners[number]) for number in numbers)

    def _block(self, block: BlockId, owners: list[tuple[Sequence, int]]) -> BlockTold:
        view, size = self._cache.view, self._cache.block_size
        content = view.content(block)
        token_ids = content.token_ids if content is not None else ()
        if content is None and owners:
            sequence, place = owners[0]
            token_ids = tuple(sequence.tokens[: sequence.num_computed][place * size : (place + 1) * size])
        requests = [self._registry.get(sequence.request.id) for sequence, _ in owners]
        names = dict.fromkeys(request.story.name for request in requests if request is not None)
        return BlockTold(seen=view.block(block), token_ids=token_ids, owners=tuple(names))

    @contextmanager
    def prefixes(self) -> Iterator["Prefixes"]:
        """A copy of the prefix index that follows it for as long as the block runs."""
        following = Prefixes(self._cache)
        unsubscribe = self._cache.subscribe(following.tree.apply)
        try:
            yield following
        finally:
            unsubscribe()


class Prefixes:
    """The tree of cached prefixes. Begun with nothing, `fill` brings what was there before."""

    def __init__(self, cache: KVCacheManager) -> None:
        self.tree = PrefixTree()
        self._cache = cache
        self._next = 0

    def fill(self) -> bool:
        """Take in some blocks more. True: there were any."""
        view, tree = self._cache.view, self.tree
        end = min(self._next + FILL_SLICE, self._cache.num_blocks)
        if self._next == end:
            return False
        for block in map(BlockId, range(self._next, end)):
            content = view.content(block)
            if content is not None:
                tree.add(content.group, block, content.content_hash, content.parent_hash, content.token_ids)
        self._next = end
        tree.version += 1
        return True

    def outline(self, *, max_branches: int, max_visits: int) -> Outline:
        return self.tree.outline(refcount=self._cache.view.refcount, max_branches=max_branches, max_visits=max_visits)


def _num_blocks(group: Group) -> int:
    """Table entries that name a block, over all its sequences."""
    return sum(
        len(table) - first
        for sequence in group.sequences
        for table, first in zip(sequence.blocks.tables, sequence.blocks.first_live, strict=True)
    )


def _state_of(request: OpenRequest, group: Group | None) -> str:
    if group is None:
        return "tokenizing" if request.stage is Stage.TOKENIZING else "waiting"
    states = {sequence.state for sequence in group.sequences}
    if states & {State.DECODING, State.CLOSING, State.PAUSED}:
        return "decode"
    if State.PREFILLING in states:
        return "prefill"
    return "preempted" if group.was_admitted else "waiting"
