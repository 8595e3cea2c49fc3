"""The real scheduler and allocator against a device that is a formula: what a machine would do under a load.

Pure and without waiting: time is a number that steps add to, so an hour of load takes seconds, and the same trace and
seed give the same answer. It leaves out what is not the scheduler's: tokenizing, the network, clients that read slowly.
"""

import math
import random
from collections.abc import Sequence
from itertools import count

import attrs

from ..kvcache.group import KVGroup
from ..kvcache.manager import KVCacheManager
from .core.events import FinishReason
from .core.ids import RequestId, TokenId
from .core.params import SamplingParams
from .core.plan import StepPlan, StepResult
from .core.request import Request
from .core.scheduler import Scheduler, SchedulerConfig
from .cost import MirroredBatch, StepCost, shape_of
from .estimate import Estimate

VOCAB_SIZE = 100_000


@attrs.frozen(kw_only=True)
class Arrival:
    """One request of a trace. Times in seconds, from the start and from the arrival."""

    at: float
    prompt_tokens: int
    output_tokens: int
    prefix: int | None = None
    """Requests of the same number begin with the same tokens …"""
    prefix_tokens: int = 0
    """… as many as this."""
    cancel_after: float | None = None

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.at < math.inf or self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ValueError("an arrival needs a time of at least 0, and at least one prompt and one output token")
        if self.prefix_tokens < 0 or (self.cancel_after is not None and not self.cancel_after >= 0):
            raise ValueError("prefix_tokens and cancel_after must be at least 0")


@attrs.frozen(kw_only=True)
class Load:
    """How to draw a trace: Poisson arrivals, lengths from half to one and a half times the mean."""

    num_requests: int
    requests_per_s: float
    prompt_tokens: int
    output_tokens: int
    prefix_tokens: int = 0
    num_prefixes: int = 1
    cancel_share: float = 0.0
    """Of the requests so many are cancelled …"""
    cancel_within_s: float = 1.0
    """… up to this long after their arrival."""


def draw_trace(load: Load, seed: int) -> list[Arrival]:
    """The same for the same seed."""
    rng = random.Random(seed)
    arrivals, now = [], 0.0
    for _ in range(load.num_requests):
        now += rng.expovariate(load.requests_per_s)
        prefixed = load.prefix_tokens > 0
        arrivals.append(
            Arrival(
                at=now,
                prompt_tokens=load.prefix_tokens + _around(rng, load.prompt_tokens),
                output_tokens=_around(rng, load.output_tokens),
                prefix=rng.randrange(load.num_prefixes) if prefixed else None,
                prefix_tokens=load.prefix_tokens,
                cancel_after=rng.uniform(0, load.cancel_within_s) if rng.random() < load.cancel_share else None,
            )
        )
    return arrivals


def _around(rng: random.Random, mean: int) -> int:
    return max(1, round(rng.uniform(0.5, 1.5) * mean))


class FormulaDevice:
    """Carries plans out in no time, and says how long they would take. Its tokens mean nothing; no two are alike."""

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self._batch = MirroredBatch()
        self._tokens = count(1)

    def execute(self, plan: StepPlan) -> StepResult:
        parts = self._batch.apply(plan)
        sampled = tuple(part.sequence for part in parts if part.samples)
        return StepResult(
            step=plan.step,
            sequences=sampled,
            token_ids=tuple(TokenId(next(self._tokens) % VOCAB_SIZE) for _ in sampled),
            seconds=self._cost(shape_of(parts)),
        )


@attrs.define(eq=False)
class _Life:
    arrival: Arrival
    first: float | None = None
    last: float | None = None
    end: float | None = None
    num_tokens: int = 0
    reason: FinishReason | None = None


@attrs.frozen
class Moment:
    """The engine when a step has landed."""

    at: float
    num_tokens: int
    """Computed in the step."""
    num_sampled: int
    running: int
    """As the step was planned, like the rest."""
    waiting: int
    kv_usage: float


@attrs.frozen(kw_only=True)
class Outcome:
    """What a simulation gave. Times in seconds, one entry for each request that they are known of."""

    seconds: float
    num_finished: int
    num_cancelled: int
    first_token_s: tuple[float, ...]
    per_token_s: tuple[float, ...]
    e2e_s: tuple[float, ...]
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    wasted_tokens: int
    preemptions: int
    steps: int
    most_running: int
    most_waiting: int
    most_kv_usage: float
    timeline: tuple[Moment, ...] = attrs.field(default=(), repr=False)
    """Step by step."""

    @property
    def tokens_per_s(self) -> float:
        return self.generated_tokens / self.seconds if self.seconds else 0.0

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def make_simulation(found: Estimate, cost: StepCost, *, max_model_len: int, **limits: int) -> "Simulation":
    """Of a model on a machine, with that `SchedulerConfig`."""
    return Simulation(
        SchedulerConfig(**limits),
        cost,
        num_blocks=found.num_blocks,
        block_size=found.block_size,
        groups=found.groups,
        max_model_len=max_model_len,
    )


class Simulation:
    """One scheduler with its cache, and one device."""

    def __init__(
        self,
        limits: SchedulerConfig,
        cost: StepCost,
        *,
        num_blocks: int,
        block_size: int = 16,
        groups: tuple[KVGroup, ...] = (KVGroup(),),
        enable_prefix_caching: bool = True,
        max_model_len: int | None = None,
    ) -> None:
        self._cache = KVCacheManager(
            num_blocks=num_blocks, block_size=block_size, groups=groups, enable_prefix_caching=enable_prefix_caching
        )
        self._scheduler = Scheduler(limits, self._cache)
        self._device = FormulaDevice(cost)
        self._most_tokens = max_model_len or num_blocks * block_size // len(groups)
        self._lives: dict[RequestId, _Life] = {}
        self._now = 0.0
        self._timeline: list[Moment] = []

    def run(self, trace: Sequence[Arrival], seed: int = 0) -> Outcome:
        """Play the trace to its end. Requests longer than the model takes are cut to its length."""
        rng = random.Random(seed)
        prefixes: dict[int, tuple[TokenId, ...]] = {}
        arrivals = sorted(trace, key=lambda arrival: arrival.at)
        cancels = sorted(
            (arrival.at + arrival.cancel_after, RequestId(str(number)))
            for number, arrival in enumerate(arrivals)
            if arrival.cancel_after is not None
        )
        num_come = num_cancelled = 0
        while True:
            while num_come < len(arrivals) and arrivals[num_come].at <= self._now:
                self._submit(RequestId(str(num_come)), arrivals[num_come], rng, prefixes)
                num_come += 1
            while num_cancelled < len(cancels) and cancels[num_cancelled][0] <= self._now:
                self._scheduler.abort(cancels[num_cancelled][1])
                num_cancelled += 1
            if not self._step():
                moments = [arrivals[num_come].at] if num_come < len(arrivals) else []
                if not moments and not self._scheduler.has_unfinished:
                    return self._outcome()
                moments += [cancels[num_cancelled][0]] if num_cancelled < len(cancels) else []
                self._now = min(moments)

    def _submit(
        self, request_id: RequestId, arrival: Arrival, rng: random.Random, prefixes: dict[int, tuple[TokenId, ...]]
    ) -> None:
        def tokens(number: int) -> tuple[TokenId, ...]:
            return tuple(TokenId(rng.randrange(VOCAB_SIZE)) for _ in range(number))

        prefix: tuple[TokenId, ...] = ()
        if arrival.prefix is not None:
            prefix = prefixes.setdefault(arrival.prefix, tokens(arrival.prefix_tokens))
        prompt = (prefix + tokens(max(1, arrival.prompt_tokens - len(prefix))))[: self._most_tokens - 1]
        max_tokens = min(arrival.output_tokens, self._most_tokens - len(prompt))
        self._lives[request_id] = _Life(arrival)
        self._scheduler.submit(
            Request(
                id=request_id,
                prompt_token_ids=prompt,
                params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
                seed=0,
                arrival_time=arrival.at,
            )
        )

    def _step(self) -> bool:
        """Plan a step, let its time pass, take it in. False: there is nothing to run."""
        plan = self._scheduler.plan(self._now)
        if plan is not None:
            scheduler = self._scheduler
            state = (scheduler.num_running, scheduler.num_waiting, self._cache.usage)
            result = self._device.execute(plan)
            self._now += result.seconds
            self._timeline.append(Moment(self._now, plan.num_tokens, len(result.sequences), *state))
            self._scheduler.commit(result, self._now)
        events = self._scheduler.take_events()
        for request_id in events.requests:
            life = self._lives[request_id]
            life.first = self._now if life.first is None else life.first
            life.last = self._now
            life.num_tokens += 1
        for finished in events.finished:
            self._lives[finished.request].end = self._now
            self._lives[finished.request].reason = finished.reason
        return plan is not None

    def _outcome(self) -> Outcome:
        lives = list(self._lives.values())
        done = [life for life in lives if life.reason is FinishReason.LENGTH]
        stats = self._scheduler.stats
        return Outcome(
            seconds=self._now,
            num_finished=len(done),
            num_cancelled=sum(life.reason is FinishReason.ABORT for life in lives),
            first_token_s=tuple(life.first - life.arrival.at for life in lives if life.first is not None),
            per_token_s=tuple(
                (life.last - life.first) / (life.num_tokens - 1)
                for life in lives
                if life.first is not None and life.last is not None and life.num_tokens > 1
            ),
            e2e_s=tuple(life.end - life.arrival.at for life in done if life.end is not None),
            prompt_tokens=stats.prompt_tokens,
            cached_tokens=stats.prefix_hits,
            generated_tokens=stats.generation_tokens,
            wasted_tokens=stats.wasted_tokens,
            preemptions=stats.num_preemptions,
            steps=stats.num_steps,
            most_running=max((moment.running for moment in self._timeline), default=0),
            most_waiting=max((moment.waiting for moment in self._timeline), default=0),
            most_kv_usage=max((moment.kv_usage for moment in self._timeline), default=0.0),
            timeline=tuple(self._timeline),
        )
