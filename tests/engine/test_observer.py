"""What is measured: times from arrival, counts, and the numbers of the moment."""

import attrs
import pytest
import trio
import trio.testing

from triolet.engine.core.events import FinishReason
from triolet.engine.core.ids import RequestId, TokenId
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.request import Request
from triolet.engine.core.scheduler import Scheduler, SchedulerConfig
from triolet.engine.observer import AbortReason, NoObserver, Phase, RequestEnd, StepSeen
from triolet.engine.open import run_engine
from triolet.engine.options import DEFAULT_OPTIONS, RequestOptions
from triolet.engine.registry import RETRY_AFTER_S_MAX, Registry, Stage
from triolet.kvcache.manager import KVCacheManager

from .simulated import simulate


@attrs.define
class Seen(NoObserver):
    """Notes everything."""

    first: list[float] = attrs.field(factory=list)
    between: list[tuple[float, int]] = attrs.field(factory=list)
    ends: list[RequestEnd] = attrs.field(factory=list)
    aborts: list[tuple[AbortReason, Phase]] = attrs.field(factory=list)
    steps: list[StepSeen] = attrs.field(factory=list)
    num_detokenized: int = 0

    def first_token(self, seconds: float) -> None:
        self.first.append(seconds)

    def inter_token(self, seconds: float, count: int) -> None:
        self.between.append((seconds, count))

    def finished(self, end: RequestEnd) -> None:
        self.ends.append(end)

    def aborted(self, reason: AbortReason, phase: Phase) -> None:
        self.aborts.append((reason, phase))

    def step(self, seen: StepSeen) -> None:
        self.steps.append(seen)

    def detokenized(self, seconds: float) -> None:
        self.num_detokenized += 1


async def test_an_observer_sees_first_tokens_gaps_and_ends(autojump_clock: trio.testing.MockClock) -> None:
    """A prompt of one step and four tokens: the first after a step, three gaps of a step, one end with all counts."""
    seen = Seen()
    params = SamplingParams(max_tokens=4)
    async with run_engine(simulate().parts, observer=seen) as engine, engine.generate("hello\n", params) as stream:
        _ = [output async for output in stream]
    assert seen.first == [1.0]
    assert seen.between == [(1.0, 1)] * 3
    (end,) = seen.ends
    assert (end.reason, end.abort_reason, end.phase) == (FinishReason.LENGTH, None, Phase.DECODE)
    assert (end.e2e_seconds, end.queue_seconds, end.prefill_seconds, end.decode_seconds) == (4.0, 0.0, 1.0, 3.0)
    assert (end.inference_seconds, end.seconds_per_output_token) == (4.0, 1.0)
    assert (end.num_prompt_tokens, end.num_cached_tokens, end.num_output_tokens, end.max_tokens) == (6, 0, 4, 4)
    assert not seen.aborts


async def test_an_observer_sees_steps(autojump_clock: trio.testing.MockClock) -> None:
    """Each landed step once: its tokens, its moments; and the detokenizer took each one's events in."""
    seen = Seen()
    params = SamplingParams(max_tokens=3)
    async with run_engine(simulate().parts, observer=seen) as engine, engine.generate("hello\n", params) as stream:
        _ = [output async for output in stream]
    assert [step.num_tokens for step in seen.steps] == [6, 1, 1]
    assert [step.num_prefill_tokens for step in seen.steps] == [6, 0, 0]
    assert [step.landed - step.begun for step in seen.steps] == [1.0, 1.0, 1.0]
    assert [step.num_sequences for step in seen.steps] == [1, 1, 1]
    assert seen.num_detokenized == 4  # an admission, and three tokens


async def test_a_request_that_was_never_admitted_queued_to_its_end(autojump_clock: trio.testing.MockClock) -> None:
    """Its queue time is its whole time; a refused one is no end at all."""
    seen = Seen()
    parts = simulate(max_num_seqs=1).parts
    async with run_engine(parts, observer=seen) as engine, engine.generate("a long answer\n") as running:
        await anext(running)
        with trio.move_on_after(2.5):
            async with engine.generate("never\n") as waiting:
                await anext(waiting)
        await trio.sleep(1)
    (end, *_) = seen.ends
    assert (end.reason, end.queue_seconds, end.e2e_seconds) == (FinishReason.ABORT, 3.0, 3.0)
    assert (end.prefill_seconds, end.inference_seconds, end.seconds_per_output_token) == (None, None, None)
    assert seen.aborts[0] == (AbortReason.LEFT, Phase.WAITING)


async def test_an_observer_hears_why_requests_were_cut_short(autojump_clock: trio.testing.MockClock) -> None:
    """Left, cancelled by name, superseded, out of time: each by its reason and state, once."""
    seen = Seen()
    async with run_engine(simulate().parts, observer=seen) as engine:

        async def ask(name: str, options: RequestOptions = DEFAULT_OPTIONS) -> None:
            async with engine.generate("a long answer\n", request_id=name, options=options) as stream:
                _ = [output async for output in stream]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "cancelled")
            nursery.start_soon(ask, "older", RequestOptions(supersede_key="key"))
            nursery.start_soon(ask, "late", RequestOptions(deadline=trio.current_time() + 2.5))
            async with engine.generate("a long answer\n") as stream:
                await anext(stream)
            assert engine.abort("cancelled")
            async with engine.generate("x\n", options=RequestOptions(supersede_key="key")) as newer:
                _ = [output async for output in newer]
        await ask("too late", RequestOptions(deadline=trio.current_time()))
        stats = engine.stats()
    assert sorted(seen.aborts) == [
        (AbortReason.CANCELLED, Phase.DECODE),
        (AbortReason.DEADLINE, Phase.DECODE),
        (AbortReason.DEADLINE, Phase.TOKENIZING),
        (AbortReason.LEFT, Phase.DECODE),
        (AbortReason.SUPERSEDED, Phase.DECODE),
    ]
    assert stats.wasted_tokens == 1  # of the one who left, in the step that was in flight


async def test_stats_tell_the_moment(mock_clock: trio.testing.MockClock) -> None:
    """Running, waiting and blocks while it runs; counters afterwards."""
    async with run_engine(simulate(max_num_seqs=1).parts) as engine:
        async with engine.generate("hello\n") as stream, engine.generate("wait\n"):
            await trio.testing.wait_all_tasks_blocked()
            stats = engine.stats()
            assert (stats.running, stats.waiting, stats.num_blocks, stats.num_free_blocks) == (1, 1, 64, 62)
            assert stats.kv_usage == 2 / 64
            mock_clock.autojump_threshold = 0
            _ = [output async for output in stream]
        stats = engine.stats()
    assert (stats.prompt_tokens, stats.prefix_queries, stats.generation_tokens) >= (6, 6, 6)
    assert stats.steps >= 6


@pytest.mark.parametrize(("enabled", "asked", "expected"), [(True, None, 6), (True, 0, 0), (False, None, 0)])
def test_prefix_queries_are_the_tokens_that_were_looked_up(enabled: bool, asked: int | None, expected: int) -> None:
    """None without prefix caching, and none of a prompt that is computed for its log-probabilities."""
    cache = KVCacheManager(num_blocks=8, block_size=4, enable_prefix_caching=enabled)
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=8), cache)
    params = SamplingParams(max_tokens=1, prompt_logprobs=asked)
    prompt = tuple(map(TokenId, range(6)))
    scheduler.submit(Request(id=RequestId("a"), prompt_token_ids=prompt, params=params, seed=0))
    assert scheduler.plan(0.0) is not None
    assert (scheduler.stats.prompt_tokens, scheduler.stats.prefix_queries) == (6, expected)


def test_the_time_to_come_back_follows_the_rate() -> None:
    """A queue of 30 at three ends a second is served in ten seconds; never less than one, never more than a minute."""
    registry = Registry(max_queued=30, max_running=0)
    assert registry._retry_after_s(0.0) == 1
    for number in range(64):
        now = number / 3
        request = registry.enter(None, now)
        registry.move(request, Stage.ENDED, now)
    for _ in range(30):
        registry.enter(None, 21.0)
    assert registry._retry_after_s(21.0) == 10
    assert registry._retry_after_s(10_000.0) == RETRY_AFTER_S_MAX
