"""Settings that change while the engine runs, at a step boundary: the limits of steps and queue, pause, the cache.

Imports trio. What concerns the scheduler is carried out by its loop, between two steps, as one message; at most one is
under way, so the loop's inbox holds at most one.
"""

from collections.abc import Callable

import attrs
import trio

from .core.errors import InvalidRequest, Overloaded
from .core.policy import POLICIES, make_policy
from .core.scheduler import Scheduler
from .inbox import Inbox
from .messages import AtBoundary, SchedulerMessage
from .registry import Registry


@attrs.frozen(kw_only=True)
class Settings:
    """What can change. See `EngineConfig` for what each means."""

    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int
    max_num_queued_reqs: int
    max_num_queued_tokens: int
    """0 sets no limit."""
    scheduling_policy: str
    paused: bool = False
    """No step is planned; requests are taken in, and wait."""


class Controls:
    """One engine's. Each change returns once it holds; cancelled meanwhile, it comes to hold all the same.

    Raises Overloaded while another change is under way, and when the loop does not answer in `ANSWER_S`.
    """

    ANSWER_S = 60.0

    def __init__(
        self,
        scheduler: Scheduler,
        registry: Registry,
        inbox: Inbox[SchedulerMessage],
        *,
        pause: Callable[[bool], None],
        reset_cache: Callable[[], bool],
        policy: str = "fcfs",
    ) -> None:
        """`policy`: what the scheduler's is called."""
        self._scheduler = scheduler
        self._registry = registry
        self._inbox = inbox
        self._pause = pause
        self._reset_cache = reset_cache
        self._paused = False
        self._under_way = False
        limits = scheduler.config
        self._most_seqs = limits.max_num_seqs
        self._most_tokens = limits.max_num_batched_tokens
        self._policy = policy
        self._policies = tuple(dict.fromkeys((*POLICIES, policy)))
        self._most_queued = registry.max_queued

    @property
    def settings(self) -> Settings:
        """As they are now; running out of memory may have lowered `max_num_batched_tokens`."""
        limits = self._scheduler.config
        return Settings(
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            long_prefill_token_threshold=limits.long_prefill_token_threshold,
            max_num_queued_reqs=self._registry.max_queued,
            max_num_queued_tokens=self._registry.max_queued_tokens,
            scheduling_policy=self._policy,
            paused=self._paused,
        )

    async def change(
        self,
        *,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        long_prefill_token_threshold: int | None = None,
        max_num_queued_reqs: int | None = None,
        max_num_queued_tokens: int | None = None,
        scheduling_policy: str | None = None,
    ) -> Settings:
        """All of it or nothing. Raises InvalidRequest naming the setting: memory was measured for the steps that the
        engine was started with, and its inboxes for that queue, so neither grows beyond. A policy is one of our own, or
        that which the engine was started with: no code is imported because a request names it."""
        now = self._scheduler.config
        budget = now.max_num_batched_tokens if max_num_batched_tokens is None else max_num_batched_tokens
        _check("max_num_seqs", max_num_seqs, 1, max(1, min(self._most_seqs, budget)))
        low = now.max_num_seqs if max_num_seqs is None else max_num_seqs
        _check("max_num_batched_tokens", max_num_batched_tokens, low, self._most_tokens)
        if scheduling_policy is not None and scheduling_policy not in self._policies:
            raise InvalidRequest(
                f"scheduling_policy must be one of {', '.join(self._policies)}, not {scheduling_policy[:64]!r}.",
                param="scheduling_policy",
            )
        _check("long_prefill_token_threshold", long_prefill_token_threshold, 0, None)
        _check("max_num_queued_reqs", max_num_queued_reqs, 1, self._most_queued)
        _check("max_num_queued_tokens", max_num_queued_tokens, 0, None)
        asked = {
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "long_prefill_token_threshold": long_prefill_token_threshold,
        }
        limits = {name: value for name, value in asked.items() if value is not None}
        needed: list[int] = []

        def apply() -> None:
            scheduler = self._scheduler
            if max_num_seqs is not None and max_num_seqs < scheduler.most_answers:
                needed.append(scheduler.most_answers)
                return
            scheduler.set_limits(attrs.evolve(scheduler.config, **limits))
            self._registry.set_limits(max_queued=max_num_queued_reqs, max_queued_tokens=max_num_queued_tokens)
            if scheduling_policy is not None and scheduling_policy != self._policy:
                scheduler.set_policy(make_policy(scheduling_policy))
                self._policy = scheduling_policy

        await self._at_boundary(apply)
        if needed:
            raise InvalidRequest(
                f"max_num_seqs must be at least {needed[0]} as long as a request with so many answers is open.",
                param="max_num_seqs",
            )
        return self.settings

    async def pause(self, paused: bool) -> Settings:
        """Plan no more steps, or go on. Deadlines pass meanwhile, and aborts act."""

        def apply() -> None:
            self._pause(paused)
            self._paused = paused

        await self._at_boundary(apply)
        return self.settings

    async def reset_prefix_cache(self) -> bool:
        """Forget what prompts began with. False: a request holds blocks, and nothing has changed."""
        answers: list[bool] = []
        await self._at_boundary(lambda: answers.append(self._reset_cache()))
        return answers[0]

    async def _at_boundary(self, call: Callable[[], None]) -> None:
        if self._under_way:
            raise Overloaded("Another change of the settings is under way.", retry_after_s=1)
        done = trio.Event()

        def run() -> None:
            self._under_way = False
            call()
            done.set()

        self._under_way = True
        self._inbox.put(AtBoundary(call=run))
        with trio.move_on_after(self.ANSWER_S):
            await done.wait()
            return
        raise Overloaded("The step in flight has not landed; the change comes to hold when it does.", retry_after_s=60)


def _check(name: str, value: int | None, low: int, high: int | None) -> None:
    if value is None or (value >= low and (high is None or value <= high)):
        return
    bounds = f"at least {low}" if high is None else f"from {low} to {high}"
    raise InvalidRequest(f"{name} must be {bounds}, not {value}.", param=name)
