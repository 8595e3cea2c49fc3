"""The actors of an engine, put together: inboxes, registry, scheduler loop, detokenizer, front door.

Imports trio through them. Nothing runs here and nothing is loaded: given a scheduler, a device and a tokenizer, real
ones or a simulation's, it connects them.
"""

import math
from collections.abc import Awaitable, Callable

import attrs

from ..kvcache.manager import KVCacheManager
from .controls import Controls
from .core.scheduler import Scheduler
from .detokenizer import Detokenizer
from .device import Device
from .engine import Engine, EngineFacts
from .grammar import Compiler, GrammarClient
from .inbox import Inbox
from .inside import Inside
from .loop import SchedulerLoop
from .messages import (
    DetokenizerMessage,
    SchedulerMessage,
    Submit,
    detokenizer_inbox_limit,
    scheduler_inbox_limit,
)
from .observer import NoObserver, Observer
from .registry import Registry
from .stats import EngineStats, read_stats
from .tokenizer import ChatTokenizer, TokenizerClient


@attrs.frozen(kw_only=True)
class EngineParts:
    """What an engine is made of. The scheduler and its cache belong to the engine from here on."""

    facts: EngineFacts
    tokenizer: ChatTokenizer
    scheduler: Scheduler
    cache: KVCacheManager
    device: Device
    grammars: Compiler | None = None
    """None: requests with a grammar are refused."""
    max_num_queued_reqs: int
    max_num_queued_tokens: int = 0
    """0 sets no limit."""
    step_timeout_s: float = math.inf
    max_losses_in_a_row: int = 3
    num_kept_requests: int = 256
    depth: int = 1
    """Steps on the device at a time, where whoever runs the parts follows the configuration."""
    scheduling_policy: str = "fcfs"
    """What the scheduler's policy is called."""


class Assembly:
    """The connected actors. Whoever makes it runs each of `actors` in a task."""

    def __init__(
        self, parts: EngineParts, *, observer: Observer | None = None, depth: int = 1, check: bool = False
    ) -> None:
        observer = observer if observer is not None else NoObserver()
        self.registry = Registry(
            max_queued=parts.max_num_queued_reqs,
            max_running=parts.facts.max_num_seqs,
            max_queued_tokens=parts.max_num_queued_tokens or math.inf,
            num_kept=parts.num_kept_requests,
            on_ended=observer.ended,
        )
        self._parts = parts
        self._scheduler_inbox: Inbox[SchedulerMessage] = Inbox(
            scheduler_inbox_limit(self.registry.max_open, parts.facts.max_num_seqs)
        )
        detokenizer_inbox: Inbox[DetokenizerMessage] = Inbox(detokenizer_inbox_limit(self.registry.max_open))
        self._loop = SchedulerLoop(
            parts.scheduler,
            parts.device,
            self._scheduler_inbox,
            detokenizer_inbox.put,
            depth=depth,
            check=check,
            step_timeout_s=parts.step_timeout_s,
            max_losses_in_a_row=parts.max_losses_in_a_row,
            observer=observer,
        )
        self._detokenizer = Detokenizer(
            detokenizer_inbox,
            self.registry,
            self._scheduler_inbox,
            observer,
        )
        self.engine = Engine(
            parts.facts,
            tokenizer=TokenizerClient(parts.tokenizer, vocab_size=parts.facts.vocab_size),
            grammars=GrammarClient(parts.grammars),
            registry=self.registry,
            scheduler_inbox=self._scheduler_inbox,
            detokenizer_inbox=detokenizer_inbox,
            read_stats=self.read_stats,
            controls=Controls(
                parts.scheduler,
                self.registry,
                self._scheduler_inbox,
                pause=self._loop.pause,
                reset_cache=parts.cache.reset,
                policy=parts.scheduling_policy,
            ),
            inside=Inside(parts.scheduler, parts.cache, self.registry, self.read_stats),
            read_stuck=lambda: self._loop.stuck,
            observer=observer,
        )

    @property
    def actors(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """By the names that a reason of death uses."""
        return {"scheduler": self._loop.run, "detokenizer": self._detokenizer.run}

    def read_stats(self) -> EngineStats:
        """The engine's numbers now."""
        num_submitted = sum(isinstance(message, Submit) for message in self._scheduler_inbox)
        return read_stats(
            self._parts.scheduler,
            self._parts.cache,
            self.registry,
            num_submitted=num_submitted,
            num_restarts=self._loop.num_restarts,
            num_unread=self._detokenizer.num_unread_tokens,
            facts=self._parts.facts.cache,
        )
