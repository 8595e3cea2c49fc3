"""A scheduler, its cache and the readable memory in one box, driven step by step: what the laws S1 to S8 are tested on.

`World` submits, aborts and steps; it records what each request was given and checks S1 and S7 as it goes (S8 when a
request ends). Two worlds driven alike give the same, to the last token: nothing here draws a number or reads a clock.
"""

from collections import deque

import attrs

from triolet.engine.core.events import Finished, FinishReason, StepEvents
from triolet.engine.core.ids import RequestId, TokenId
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.plan import StepPlan, StepResult, choice_seed
from triolet.engine.core.policy import make_policy
from triolet.engine.core.pooling import Pooling
from triolet.engine.core.request import Request
from triolet.engine.core.scheduler import Scheduler, SchedulerConfig
from triolet.kvcache.group import KVGroup
from triolet.kvcache.manager import KVCacheManager

from .memory import MemoryDevice, alone, alone_as_vector, alone_by_beams

STEP_S = 1.0
"""A step and the pause before it, on the world's clock; the step alone takes half of it."""

CUT_OFF = {FinishReason.ABORT, FinishReason.TIMEOUT, FinishReason.ERROR}
"""Ends that do not come from the tokens."""


@attrs.frozen(kw_only=True)
class Shape:
    """One configuration of the swarm."""

    num_blocks: int
    block_size: int
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 8
    long_prefill_token_threshold: int = 0
    prefill_tokens_beside_decodes: int = 0
    enable_prefix_caching: bool = True
    depth: int = 1
    policy: str = "fcfs"
    windows: tuple[int | None, ...] = (None,)
    """A group of layers each: full attention, or a sliding window of so many tokens."""
    jump_forward: bool = True
    vocab_size: int = 32
    """Small, so that prompts share prefixes and answers meet the end token (0) soon."""

    @property
    def max_model_len(self) -> int:
        """The longest request that this pool is sure to hold."""
        return self.num_blocks // len(self.windows) * self.block_size


@attrs.define
class Record:
    """What is known of one request from outside."""

    request: Request
    given: list[list[TokenId]]
    """The tokens of each answer."""
    ended: list[FinishReason | None]
    num_cached_tokens: int | None = None
    aborted: bool = False
    finished: FinishReason | None = None
    """Why the last answer ended: the terminal event."""


class World:
    """A whole engine less its actors."""

    def __init__(self, shape: Shape, *, cache_class: type[KVCacheManager] = KVCacheManager) -> None:
        self.shape = shape
        self.cache = cache_class(
            num_blocks=shape.num_blocks,
            block_size=shape.block_size,
            enable_prefix_caching=shape.enable_prefix_caching,
            groups=tuple(KVGroup(sliding_window=window) for window in shape.windows),
        )
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=shape.max_num_seqs,
                max_num_batched_tokens=shape.max_num_batched_tokens,
                long_prefill_token_threshold=shape.long_prefill_token_threshold,
                prefill_tokens_beside_decodes=shape.prefill_tokens_beside_decodes,
            ),
            self.cache,
            make_policy(shape.policy),
        )
        self.device = self._new_device()
        self.records: dict[RequestId, Record] = {}
        self.plans: list[StepPlan] = []
        """Every plan so far."""
        self.now = 0.0
        self._results: deque[StepResult] = deque()

    def _new_device(self) -> MemoryDevice:
        shape = self.shape
        return MemoryDevice(
            num_blocks=shape.num_blocks,
            block_size=shape.block_size,
            vocab_size=shape.vocab_size,
            windows=shape.windows,
            max_num_seqs=shape.max_num_seqs,
            max_num_batched_tokens=shape.max_num_batched_tokens,
            jump_forward=shape.jump_forward,
        )

    @property
    def open(self) -> list[Record]:
        return [record for record in self.records.values() if record.finished is None]

    def submit(
        self,
        prompt: list[int],
        params: SamplingParams,
        *,
        salt: str = "",
        priority: int = 0,
        key: str = "",
        deadline: float | None = None,
        pooling: Pooling | None = None,
    ) -> RequestId:
        """Submit a request whose seed is its number."""
        request = Request(
            id=RequestId(f"r{len(self.records)}"),
            prompt_token_ids=tuple(map(TokenId, prompt)),
            params=params,
            seed=len(self.records),
            end_token_ids=(TokenId(0),),
            arrival_time=self.now,
            extra_keys=(salt,) if salt else (),
            priority=priority,
            fairness_key=key,
            deadline=deadline,
            pooling=pooling,
        )
        self.records[request.id] = Record(request, [[] for _ in range(params.n)], [None] * params.n)
        self.scheduler.submit(request)
        self.take_events()
        return request.id

    def abort(self, request_id: RequestId) -> None:
        self.records[request_id].aborted = True
        self.scheduler.abort(request_id)
        self.take_events()

    def step(self) -> bool:
        """Plan as far ahead as the depth allows, then let the oldest step land. False: nothing could run."""
        self.now += STEP_S / 2
        while len(self._results) < self.shape.depth:
            plan = self.scheduler.plan(self.now)
            if plan is None:
                break
            self.plans.append(plan)
            self._results.append(self.device.execute(plan))
        self.now += STEP_S / 2
        if self._results:
            self.scheduler.commit(self._results.popleft(), self.now)
            self.take_events()
            return True
        self.take_events()
        assert not self.open, "S6: requests are open and nothing runs"
        return False

    def set_limits(self, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        """Others from the next plan on; the device asserts them from then on."""
        limits = attrs.evolve(
            self.scheduler.config, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
        )
        self.scheduler.set_limits(limits)
        self.device.limits = (max_num_seqs, max_num_batched_tokens)

    def lose_device(self) -> None:
        """The device is replaced by a new one: its memory, its batch and the steps in flight are gone."""
        self._results.clear()
        self.device = self._new_device()
        self.scheduler.requeue(keep_cache=False)

    def fail_step(self, *, requeue: bool) -> None:
        """The steps in flight fail; the device forgets its batch and keeps its memory."""
        running = [] if requeue else [r.request.id for r in self.open if r.num_cached_tokens is not None]
        self._results.clear()
        self.device.rows.clear()
        if requeue:
            self.scheduler.requeue(keep_cache=True)
        else:
            self.scheduler.fail_running("planted")
        self.take_events()
        assert self.scheduler.num_running == 0
        for request in running:
            # One that had been preempted waits; all others have failed.
            assert self.records[request].finished in (None, FinishReason.ERROR)

    def finish(self, most_steps: int) -> None:
        """No more arrivals: everything ends within a stated number of steps."""
        for _ in range(most_steps):
            if not self.step():
                break
        assert not self.open, f"S6: {len(self.open)} requests are open after {most_steps} steps"
        self.cache.check()
        assert self.cache.num_free_blocks == self.cache.num_blocks, "K11: every block is free or cached"

    def classes(self) -> list[list[Record]]:
        """The requests among whom first come is first served, in the order they came."""
        key = {"fcfs": lambda _: 0, "priority": lambda r: r.priority, "fair": lambda r: r.fairness_key}[
            self.shape.policy
        ]
        classes: dict[object, list[Record]] = {}
        for record in self.records.values():
            classes.setdefault(key(record.request), []).append(record)
        return list(classes.values())

    def take_events(self) -> StepEvents:
        events = self.scheduler.take_events()
        for admitted in events.admitted:
            record = self.records[admitted.request]
            assert record.num_cached_tokens is None, "a request is admitted for the first time once"
            record.num_cached_tokens = admitted.num_cached_tokens
        for request, token, choice in zip(events.requests, events.token_ids, events.choices, strict=True):
            assert self.records[request].ended[choice] is None, "S7: nothing follows the end of an answer"
            self.records[request].given[choice].append(token)
        for finished in events.finished:
            record = self.records[finished.request]
            assert record.finished is None, "S7: one terminal event"
            if finished.reason is FinishReason.ERROR:
                record.finished = finished.reason if finished.last else None
                continue
            assert record.ended[finished.choice] is None, "S7: an answer ends once"
            record.ended[finished.choice] = finished.reason
            self._check_text(record, finished)
            if finished.last:
                record.finished = finished.reason
                begun = len({answer for answer, reason in enumerate(record.ended) if reason is not None})
                assert finished.score is not None or begun == request_answers(record), (
                    "S7: the terminal event follows the end of every answer"
                )
        return events

    def _check_text(self, record: Record, finished: Finished) -> None:
        """S8: what it was given is what it gives alone, or, if it was cut off, the beginning of that."""
        request = record.request
        params = request.params
        assert params.max_tokens is not None
        grammar = params.grammar is not None
        ignores_end = params.ignore_eos and not grammar
        ends = set(params.stop_token_ids) | (set() if ignores_end else set(request.end_token_ids))
        expected = alone(
            request.prompt_token_ids,
            num_tokens=params.max_tokens,
            end_tokens=frozenset(ends),
            min_tokens=params.min_tokens,
            seed=choice_seed(request.seed, finished.choice),
            windows=self.shape.windows,
            vocab_size=self.shape.vocab_size,
            grammar=grammar,
        )
        given = record.given[finished.choice]
        if request.pooling is not None and finished.reason not in CUT_OFF:
            vector = alone_as_vector(
                request.prompt_token_ids, pooling=request.pooling, seed=request.seed, windows=self.shape.windows
            )
            assert (given, finished.vector, finished.reason) == ([], vector, FinishReason.STOP), "S8"
            return
        if params.use_beam_search and finished.reason not in CUT_OFF:
            best = alone_by_beams(
                request.prompt_token_ids,
                num_beams=params.n,
                num_tokens=params.max_tokens,
                end_tokens=frozenset(ends),
                min_tokens=params.min_tokens,
                length_penalty=params.length_penalty,
                seed=request.seed,
                vocab_size=self.shape.vocab_size,
                windows=self.shape.windows,
            )
            assert (given, finished.score) == best[finished.choice], "S8"
            return
        if finished.reason in (FinishReason.ABORT, FinishReason.TIMEOUT):
            assert record.aborted or request.deadline is not None
            if finished.reason is FinishReason.TIMEOUT and self.now < (request.deadline or 0):
                # It ended before its time was up: it was never let in, and could not have ended in time.
                assert record.num_cached_tokens is None
                most_steps = len(request.prompt_token_ids) + params.max_tokens
                assert self.now + most_steps * STEP_S > (request.deadline or 0)
            assert given == expected[: len(given)], "S8"
            return
        assert given == expected, "S8"
        length = len(expected) == params.max_tokens
        assert finished.reason is (FinishReason.LENGTH if length else FinishReason.STOP)
        assert finished.num_output_tokens == len(expected) + (not length)


def request_answers(record: Record) -> int:
    """How many answers of it must have ended: all, or the one that it still was when it was cut off."""
    forked = any(record.given[1:]) or any(reason is not None for reason in record.ended[1:])
    return 1 if not forked and record.ended[0] in CUT_OFF else record.request.params.n
