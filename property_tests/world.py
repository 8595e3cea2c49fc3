"""A scheduler, its cache and the readable memory in one box, driven step by step: what the laws S1 to S8 are tested on.

`World` submits, aborts and steps; it records what each request was given and checks S1 and S7 as it goes (S8 when a
request ends). Two worlds driven alike give the same, to the last token: nothing here draws a number or reads a clock.
"""

from collections import deque

import attrs

from triolet.engine.core.events import FinishReason, StepEvents
from triolet.engine.core.ids import RequestId, TokenId
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.plan import StepResult
from triolet.engine.core.request import Request
from triolet.engine.core.scheduler import Scheduler, SchedulerConfig
from triolet.kvcache.manager import KVCacheManager

from .memory import MemoryDevice, alone


@attrs.frozen(kw_only=True)
class Shape:
    """One configuration of the swarm."""

    num_blocks: int
    block_size: int
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 8
    long_prefill_token_threshold: int = 0
    enable_prefix_caching: bool = True
    depth: int = 1
    vocab_size: int = 32
    """Small, so that prompts share prefixes and answers meet the end token (0) soon."""

    @property
    def max_model_len(self) -> int:
        """The longest request that this pool is sure to hold."""
        return self.num_blocks * self.block_size


@attrs.define
class Record:
    """What is known of one request from outside."""

    request: Request
    given: list[TokenId] = attrs.field(factory=list)
    num_cached_tokens: int | None = None
    aborted: bool = False
    finished: FinishReason | None = None
    num_output_tokens: int = 0


class World:
    """A whole engine less its actors."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.cache = KVCacheManager(
            num_blocks=shape.num_blocks,
            block_size=shape.block_size,
            enable_prefix_caching=shape.enable_prefix_caching,
        )
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=shape.max_num_seqs,
                max_num_batched_tokens=shape.max_num_batched_tokens,
                long_prefill_token_threshold=shape.long_prefill_token_threshold,
            ),
            self.cache,
        )
        self.device = MemoryDevice(
            num_blocks=shape.num_blocks,
            block_size=shape.block_size,
            vocab_size=shape.vocab_size,
            max_num_seqs=shape.max_num_seqs,
            max_num_batched_tokens=shape.max_num_batched_tokens,
        )
        self.records: dict[RequestId, Record] = {}
        self.now = 0.0
        self._results: deque[StepResult] = deque()

    @property
    def open(self) -> list[Record]:
        return [record for record in self.records.values() if record.finished is None]

    def submit(self, prompt: list[int], params: SamplingParams, *, salt: str = "") -> RequestId:
        """Submit a request whose seed is its number."""
        request = Request(
            id=RequestId(f"r{len(self.records)}"),
            prompt_token_ids=tuple(map(TokenId, prompt)),
            params=params,
            seed=len(self.records),
            end_token_ids=(TokenId(0),),
            arrival_time=self.now,
            extra_keys=(salt,) if salt else (),
        )
        self.records[request.id] = Record(request)
        self.scheduler.submit(request)
        return request.id

    def abort(self, request_id: RequestId) -> None:
        self.records[request_id].aborted = True
        self.scheduler.abort(request_id)
        self.take_events()

    def step(self) -> bool:
        """Plan as far ahead as the depth allows, then let the oldest step land. False: nothing could run."""
        self.now += 1.0
        while len(self._results) < self.shape.depth:
            plan = self.scheduler.plan(self.now)
            if plan is None:
                break
            self._results.append(self.device.execute(plan))
        if self._results:
            self.scheduler.commit(self._results.popleft(), self.now)
            self.take_events()
            return True
        assert not self.open, "S6: requests are open and nothing runs"
        return False

    def finish(self, most_steps: int) -> None:
        """No more arrivals: everything ends within a stated number of steps."""
        for _ in range(most_steps):
            if not self.step():
                break
        assert not self.open, f"S6: {len(self.open)} requests are open after {most_steps} steps"
        self.cache.check()
        assert self.cache.num_free_blocks == self.cache.num_blocks, "K11: every block is free or cached"

    def take_events(self) -> StepEvents:
        events = self.scheduler.take_events()
        for admitted in events.admitted:
            record = self.records[admitted.request]
            assert record.num_cached_tokens is None, "a request is admitted for the first time once"
            record.num_cached_tokens = admitted.num_cached_tokens
        for request, token in zip(events.requests, events.token_ids, strict=True):
            assert self.records[request].finished is None, "S7: nothing follows the terminal event"
            self.records[request].given.append(token)
        for finished in events.finished:
            record = self.records[finished.request]
            assert record.finished is None, "S7: one terminal event"
            record.finished = finished.reason
            record.num_output_tokens = finished.num_output_tokens
            self._check_text(record)
        return events

    def _check_text(self, record: Record) -> None:
        """S8: what it was given is what it gives alone, or, if it was aborted, the beginning of that."""
        request = record.request
        params = request.params
        assert params.max_tokens is not None
        ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(request.end_token_ids))
        expected = alone(
            request.prompt_token_ids,
            num_tokens=params.max_tokens,
            end_tokens=frozenset(ends),
            min_tokens=params.min_tokens,
            seed=request.seed,
            vocab_size=self.shape.vocab_size,
        )
        if record.finished is FinishReason.ABORT:
            assert record.aborted
            assert record.given == expected[: len(record.given)], "S8"
            return
        assert record.given == expected, "S8"
        length = len(expected) == params.max_tokens
        assert record.finished is (FinishReason.LENGTH if length else FinishReason.STOP)
        assert record.num_output_tokens == len(expected) + (not length)
