"""The laws of what a request asks to be told about its tokens, on the readable memory (see memory.py, reporting.py).

R1  a request that asks for `prompt_logprobs` is told each position of its prompt but the first, once, in order, before
    its first token: whatever was chunked, preempted, lost, planned ahead; and others are told nothing
R2  for them the whole prompt is computed: no cached prefix is used until all are said
R3  each token of a request that asks for `logprobs` comes with its own, those of its end token with its end; others
    come with none
R4  no step computes more than PROMPT_LOGPROBS_PER_STEP of such prompts' tokens
"""

from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.core.draft import PROMPT_LOGPROBS_PER_STEP
from triolet.engine.core.ids import RequestId, TokenId
from triolet.engine.core.logprobs import TokenLogprobs
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.plan import StepResult
from triolet.engine.core.request import Request
from triolet.engine.core.scheduler import Scheduler, SchedulerConfig
from triolet.kvcache.manager import KVCacheManager

from .reporting import ReportingMemory, entry

prompts = st.lists(st.integers(1, 2), min_size=1, max_size=30)
asked = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 12),
    logprobs=st.sampled_from([None, 0]),
    prompt_logprobs=st.sampled_from([None, 0, 0]),
    n=st.sampled_from([1, 1, 2]),
)


class Told:
    """What one request was told."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.prompt: list[TokenLogprobs] = []
        self.tokens: list[list[int]] = [[] for _ in range(request.params.n)]
        self.said: list[list[TokenLogprobs | None]] = [[] for _ in range(request.params.n)]

    def check(self) -> None:
        prompt, params = self.request.prompt_token_ids, self.request.params
        expected = [entry(token, place) for place, token in enumerate(prompt) if place]
        assert self.prompt == (expected if params.prompt_logprobs is not None else []), "R1"
        for tokens, said in zip(self.tokens, self.said, strict=True):
            mine = [entry(token, place) for place, token in enumerate(tokens, len(prompt))]
            assert said == (mine if params.logprobs is not None else [None] * len(tokens)), "R3"


@given(
    asks=st.lists(st.tuples(prompts, asked), min_size=1, max_size=6),
    num_blocks=st.integers(12, 30),
    budget=st.integers(4, 40),
    depth=st.sampled_from([1, 2, 3]),
    lost=st.sets(st.integers(1, 20), max_size=2),
)
def test_r1_r2_r3_each_token_is_reported_to_whoever_asks_once(
    asks: list[tuple[list[int], SamplingParams]], num_blocks: int, budget: int, depth: int, lost: set[int]
) -> None:
    """R1, R2, R3, with a device that forgets everything at the steps `lost`."""
    cache = KVCacheManager(num_blocks=num_blocks, block_size=4)
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=budget), cache)
    device = ReportingMemory(num_blocks=num_blocks, block_size=4, vocab_size=3)
    told: dict[str, Told] = {}
    for number, (prompt, params) in enumerate(asks):
        tokens = tuple(map(TokenId, prompt))
        request = Request(
            id=RequestId(str(number)), prompt_token_ids=tokens, params=params, seed=number, end_token_ids=(TokenId(0),)
        )
        told[str(number)] = Told(request)
        scheduler.submit(request)
    results: list[StepResult] = []
    while scheduler.has_unfinished:
        while len(results) < depth and (plan := scheduler.plan(0.0)) is not None:
            results.append(device.execute(plan))
            for joined in plan.joined:
                assert joined.prompt_logprobs_from is None or not joined.num_computed, "R2"
        if results[0].step in lost:
            lost.remove(results[0].step)
            results.clear()
            device.reset()
            scheduler.requeue(keep_cache=False)
            continue
        scheduler.commit(results.pop(0), 0.0)
        _take(scheduler, told)
    scheduler.check()
    for each in told.values():
        each.check()


def _take(scheduler: Scheduler, told: dict[str, Told]) -> None:
    events = scheduler.take_events()
    for name, (start, entries) in events.prompt_logprobs:
        assert start == len(told[name].prompt) + 1, "R1"
        assert not any(told[name].tokens), "R1"
        told[name].prompt.extend(entries)
    all_logprobs = events.logprobs or (None,) * len(events.requests)
    columns = (events.requests, events.token_ids, events.choices, all_logprobs)
    for name, token, choice, said in zip(*columns, strict=True):
        told[name].tokens[choice].append(token)
        told[name].said[choice].append(said)
    for end in events.finished:
        if end.end_token is not None:
            each = told[end.request]
            place = len(each.request.prompt_token_ids) + len(each.tokens[end.choice])
            expected = entry(end.end_token, place) if each.request.params.logprobs is not None else None
            assert end.end_logprobs == expected, "R3"


@given(num_requests=st.integers(1, 4), length=st.integers(1, 700), plain=st.booleans())
def test_r4_a_step_has_a_bound_on_the_prompt_tokens_it_reports(num_requests: int, length: int, plain: bool) -> None:
    """R4; a request that reports nothing is not held up by it."""
    cache = KVCacheManager(num_blocks=400, block_size=16)
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=4096), cache)
    device = ReportingMemory(num_blocks=400, block_size=16, vocab_size=3)
    for number in range(num_requests):
        params = SamplingParams(max_tokens=1, prompt_logprobs=None if plain else 0)
        prompt = tuple(map(TokenId, [number + 1] * length))
        scheduler.submit(Request(id=RequestId(str(number)), prompt_token_ids=prompt, params=params, seed=0))
    num_steps = 0
    while (plan := scheduler.plan(0.0)) is not None:
        num_steps += 1
        assert plain or plan.num_tokens <= PROMPT_LOGPROBS_PER_STEP, "R4"
        scheduler.commit(device.execute(plan), 0.0)
    assert not scheduler.has_unfinished
    assert num_steps == (1 if plain else -(-num_requests * length // PROMPT_LOGPROBS_PER_STEP))
