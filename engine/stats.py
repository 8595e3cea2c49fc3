"""The engine's numbers at one moment, for metrics pages and log lines.

Pure attrs. Gauges describe the moment; counters only grow.
"""

import attrs

from ..kvcache.manager import KVCacheManager
from .core.scheduler import Scheduler
from .registry import Registry


@attrs.frozen(kw_only=True)
class CacheFacts:
    """The KV cache as it was made; it does not change while the engine lives."""

    device: str = "cpu"
    """cpu or cuda."""
    num_blocks: int = 0
    block_size: int = 0
    bytes_per_block: int = 0
    dtype: str = "auto"
    enable_prefix_caching: bool = True
    gpu_memory_utilization: float = 0.0


NO_FACTS = CacheFacts()


@attrs.frozen(kw_only=True)
class EngineStats:
    """See the fields. Read at any time between two steps; reading costs a microsecond."""

    running: int
    """Sequences in the batch."""
    waiting: int
    """Requests that are tokenizing, on their way to the scheduler, or waiting in it (preempted ones too)."""
    num_blocks: int
    num_free_blocks: int
    """Blocks that an allocation could get now, cached ones included."""
    kv_usage: float
    """The share of the blocks that cannot be had now, 0 to 1."""
    prefix_queries: int
    """Counter, in tokens, like the rest below."""
    prefix_hits: int
    preemptions: int
    """Counter, in preemptions."""
    prompt_tokens: int
    cached_prompt_tokens: int
    generation_tokens: int
    steps: int
    """Counter, in steps."""
    scheduled_tokens: int
    queued_tokens: int = 0
    """Prompt tokens of the requests that wait for their first admission; estimated while they are being tokenized."""
    runner_restarts: int = 0
    """Counter, in runner processes that took the place of a lost one."""
    wasted_tokens: int = 0
    """Counter: tokens computed for a request that had ended, been preempted, or lost its reader by then."""
    cache: CacheFacts = NO_FACTS


def read_stats(
    scheduler: Scheduler,
    cache: KVCacheManager,
    registry: Registry,
    *,
    num_submitted: int,
    num_restarts: int,
    num_unread: int,
    facts: CacheFacts,
) -> EngineStats:
    """`num_submitted`: requests handed over that the scheduler has not seen yet. `num_unread`: tokens for nobody."""
    counters = scheduler.stats
    return EngineStats(
        running=scheduler.num_running,
        waiting=registry.num_tokenizing + num_submitted + scheduler.num_waiting,
        num_blocks=cache.num_blocks,
        num_free_blocks=cache.num_free_blocks,
        kv_usage=cache.usage,
        prefix_queries=counters.prefix_queries,
        prefix_hits=counters.prefix_hits,
        preemptions=counters.num_preemptions,
        prompt_tokens=counters.prompt_tokens,
        cached_prompt_tokens=counters.prefix_hits,
        generation_tokens=counters.generation_tokens,
        steps=counters.num_steps,
        scheduled_tokens=counters.num_scheduled_tokens,
        queued_tokens=registry.num_queued_tokens,
        runner_restarts=num_restarts,
        wasted_tokens=counters.wasted_tokens + num_unread,
        cache=facts,
    )
