"""What the live view says, as msgspec types: an event holds what has changed, and a snapshot all there is.

A cell of the map is one hexadecimal digit where a block has a cell of its own (0 free, 1 cached, 2 in limbo, 3 shared,
from 4 on owned, the owner's colour plus 4). In a larger pool a cell stands for `blocks_per_cell` blocks, and is five
digits: how many of them are free, cached, in limbo, shared and owned, in fifteenths of all where they are more than 15.
"""

from typing import Literal

import msgspec


class LiveLimits(msgspec.Struct, frozen=True):
    """What does not change, or seldom."""

    model: str
    device: str
    max_model_len: int
    num_blocks: int
    block_size: int
    blocks_per_cell: int
    max_num_seqs: int
    token_budget: int


class LiveFigures(msgspec.Struct, frozen=True):
    """The engine's numbers as on /metrics: gauges, then counters."""

    running: int
    waiting: int
    queued_tokens: int
    kv_usage: float
    free_blocks: int
    prompt_tokens: int
    cached_prompt_tokens: int
    generation_tokens: int
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    steps: int
    wasted_tokens: int
    runner_restarts: int


class LiveBlocks(msgspec.Struct, frozen=True):
    """How many blocks are in which state; all but `pinned` add up to the pool."""

    free: int
    cached: int
    owned: int
    shared: int
    limbo: int
    pinned: int


class LiveRequest(msgspec.Struct, frozen=True):
    """An open request. `arrived` and `first_token` are moments on the clock of `at`."""

    id: str
    name: str
    state: str
    colour: int | None
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    output_tokens: int
    max_tokens: int | None
    n: int
    blocks: int
    preemptions: int
    arrived: float
    first_token: float | None


class LiveStep(msgspec.Struct, frozen=True, array_like=True):
    """A step that has landed."""

    step: int
    prefill_tokens: int
    decode_tokens: int
    sequences: int
    seconds: float


class LiveGaps(msgspec.Struct, frozen=True):
    """The times between tokens since the last event, in seconds."""

    count: int
    p50: float
    p99: float
    most: float


class LiveBranch(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run of cached blocks with no fork between them."""

    depth: int
    hash: str
    blocks: int
    tokens: int
    owners: int
    """Sequences that stand on it now."""
    text: str | None = None
    """How it begins, where whoever watches may see prompts."""
    salted: bool = False
    cut: bool = False


class LivePrefixes(msgspec.Struct, frozen=True):
    """The tree of cached prefixes, read from the top."""

    branches: tuple[LiveBranch, ...]
    blocks: int
    whole: bool


class LiveEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an event of GET /v1/live holds. A field that is missing has not changed; a snapshot has them all."""

    kind: Literal["snapshot", "change"]
    at: float
    """Seconds, on the server's clock."""
    shows_text: bool = False
    limits: LiveLimits | None = None
    figures: LiveFigures | None = None
    blocks: LiveBlocks | None = None
    cells: str | None = None
    changed_cells: tuple[tuple[int, str], ...] = ()
    """From which cell on, and the cells."""
    requests: tuple[LiveRequest, ...] = ()
    """New ones and those that have changed."""
    gone: tuple[str, ...] = ()
    more_requests: int | None = None
    """Open too, and not told about."""
    steps: tuple[LiveStep, ...] = ()
    first_tokens: tuple[float, ...] = ()
    """Times to first token, in seconds."""
    gaps: LiveGaps | None = None
    prefixes: LivePrefixes | None = None


class LiveBlock(msgspec.Struct, frozen=True):
    """One block, asked for by its number."""

    block: int
    state: str
    refcount: int
    pinned: bool
    hash: str | None
    owners: tuple[str, ...]
    tokens: int
    """How many are known to be in it."""
    token_ids: tuple[int, ...] | None
    """Null where whoever asks may not see prompts."""
    text: str | None


class LiveBlockList(msgspec.Struct, frozen=True):
    """GET /v1/live/blocks/{first}."""

    object: Literal["list"]
    data: tuple[LiveBlock, ...]
