"""Laws of the scheduler that a random load rarely shows: each in a load made for it (see world.py).

S1  slots are held for all of a request's answers, and given back
S2  a prompt that arrives beside streams holds them up for no longer than its share of a step takes
S3  a better priority goes first and pushes a worse one out; fair keys get equal shares
S4  nobody is preempted who need not be: prompts alone never push each other out; nobody is who fits
S6  budget and blocks are used: a prompt gets as many tokens as they allow
S8  the draws of a request's answers differ from each other
"""

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from triolet.engine.core.events import FinishReason
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.plan import choice_seed
from triolet.engine.core.repetition import RepetitionDetection, RepetitionDetector

from .world import Shape, World

ONE = SamplingParams(max_tokens=1, ignore_eos=True)


def forever(num_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True)


@given(
    lengths=st.lists(st.integers(1, 30), min_size=2, max_size=8), budget=st.integers(8, 40), threshold=st.integers(0, 9)
)
def test_s4_prompts_alone_never_preempt_each_other(lengths: list[int], budget: int, threshold: int) -> None:
    """Who is admitted has room for the whole prompt beside what the prompts under way still need."""
    shape = Shape(
        num_blocks=12, block_size=3, max_num_batched_tokens=budget, long_prefill_token_threshold=threshold,
        enable_prefix_caching=False, max_num_seqs=8,
    )  # fmt: skip
    world = World(shape)
    for length in lengths:
        world.submit([1] * length, ONE)
    world.finish(400)
    assert world.scheduler.stats.num_preemptions == 0


@given(length=st.integers(2, 60), budget=st.integers(1, 50), threshold=st.integers(0, 50))
def test_s6_a_prompt_alone_takes_no_more_steps_than_the_budget_makes_it(
    length: int, budget: int, threshold: int
) -> None:
    """ceil(prompt / the smaller of budget and threshold), and each chunk but the last is that long."""
    world = World(
        Shape(num_blocks=64, block_size=1, max_num_seqs=1, max_num_batched_tokens=budget,
              long_prefill_token_threshold=threshold)
    )  # fmt: skip
    world.submit([1] * length, ONE)
    world.finish(100)
    chunk = min(budget, threshold) if threshold else budget
    assert [plan.num_tokens for plan in world.plans[:-1]] == [chunk] * (-(-length // chunk) - 1)


@given(first=st.integers(10, 20), second=st.integers(20, 40), windows=st.sampled_from([(None,), (None, 1000)]))
def test_s6_a_prompt_short_of_blocks_computes_what_the_free_ones_hold(
    first: int, second: int, windows: tuple[int | None, ...]
) -> None:
    """A decode takes the blocks that a better prompt's next chunk wanted: the chunk is shortened to the free ones."""
    groups = len(windows)
    num_blocks = groups * (first + 40 + second)
    world = World(
        Shape(num_blocks=num_blocks, block_size=1, max_num_seqs=2, max_num_batched_tokens=12, windows=windows,
              enable_prefix_caching=False)
    )  # fmt: skip
    world.submit([1] * second, ONE)
    world.step()
    free = world.cache.num_free_blocks // groups
    taken = world.cache.open()
    left = 3
    assert world.cache.reserve(taken, free - left) is not None
    world.step()
    assert world.plans[-1].num_tokens == min(left, second - 12)
    world.cache.release(taken)
    world.finish(200)


@given(num_requests=st.integers(2, 5), num_shared=st.integers(1, 6), budget=st.integers(6, 60))
def test_s6_a_prefix_that_comes_several_times_at_once_is_computed_once(
    num_requests: int, num_shared: int, budget: int
) -> None:
    """Who comes while another's prompt computes the same blocks waits for them to land, and finds them."""
    block_size = 4
    world = World(Shape(num_blocks=200, block_size=block_size, max_num_seqs=6, max_num_batched_tokens=budget))
    shared = [1] * (num_shared * block_size)
    records = [world.records[world.submit([*shared, 2, number], ONE)] for number in range(num_requests)]
    world.finish(200)
    assert [record.num_cached_tokens for record in records] == [0] + [len(shared)] * (num_requests - 1)
    assert sum(plan.num_tokens for plan in world.plans) == len(shared) + 2 * num_requests


@given(num_slots=st.integers(2, 6), n=st.integers(2, 6))
def test_s1_slots_are_held_for_all_answers(num_slots: int, n: int) -> None:
    """A request for n answers is let in when n sequences may run, and holds them while its prompt is read."""
    assume(n <= num_slots)
    world = World(Shape(num_blocks=200, block_size=2, max_num_seqs=num_slots, max_num_batched_tokens=num_slots))
    ahead = world.records[world.submit([1, 2], forever(6))]
    several = world.records[world.submit([1] * 20, SamplingParams(n=n, max_tokens=8, ignore_eos=True))]
    behind = world.records[world.submit([2, 2], forever(4))]
    while several.finished is None:
        world.step()
        running = [record for record in (ahead, several, behind) if record.num_cached_tokens is not None]
        held = sum(record.request.params.n for record in running if record.finished is None)
        assert held <= num_slots
    world.finish(100)


def test_s1_more_answers_than_slots_are_refused() -> None:
    """A request that could never run is told so at once."""
    world = World(Shape(num_blocks=20, block_size=2, max_num_seqs=2))
    refused = world.records[world.submit([1], SamplingParams(n=3, max_tokens=2))]
    assert refused.finished is FinishReason.ERROR
    too_wide = world.records[world.submit([1], SamplingParams(n=2, max_tokens=25, use_beam_search=True))]
    assert too_wide.finished is FinishReason.ERROR
    world.finish(1)


@given(block_size=st.integers(1, 8), num_worse=st.integers(1, 4), depth=st.integers(1, 2))
def test_s3_a_better_priority_pushes_a_worse_one_out(block_size: int, num_worse: int, depth: int) -> None:
    """With every slot taken by worse ones, a better one is through before any of them; they still get their text."""
    world = World(Shape(num_blocks=400, block_size=block_size, max_num_seqs=num_worse, policy="priority", depth=depth))
    worse = [world.records[world.submit([1, 2], forever(30), priority=5)] for _ in range(num_worse)]
    for _ in range(4):
        world.step()
    better = world.records[world.submit([2, 1], forever(5), priority=1)]
    while better.finished is None:
        world.step()
    assert not any(record.finished for record in worse)
    assert world.scheduler.stats.num_preemptions >= 1
    world.finish(500)


def test_s4_equal_priorities_do_not_push_each_other_out() -> None:
    """Only a strictly better one does; the rest wait."""
    for policy in ("fcfs", "fair", "priority"):
        world = World(Shape(num_blocks=400, block_size=4, max_num_seqs=1, policy=policy))
        world.submit([1, 2], forever(20), key="a")
        world.step()
        world.submit([2, 1], forever(5), key="b")
        world.finish(100)
        assert world.scheduler.stats.num_preemptions == 0


@given(sizes=st.lists(st.integers(1, 10), min_size=2, max_size=2))
def test_s3_fair_keys_get_equal_shares_of_tokens(sizes: list[int]) -> None:
    """Two keys that always have work waiting are given tokens alike, however large their requests are."""
    world = World(
        Shape(num_blocks=400, block_size=4, max_num_seqs=1, max_num_batched_tokens=64, policy="fair",
              enable_prefix_caching=False)
    )  # fmt: skip
    for key, size in zip("ab", sizes, strict=True):
        for _ in range(110):
            world.submit([1] * (3 * size), forever(size), key=key)
    for _ in range(100):
        world.step()
    computed = dict.fromkeys("ab", 0)
    for record in world.records.values():
        if record.finished is not None:
            computed[record.request.fairness_key] += len(record.request.prompt_token_ids) + len(record.given[0]) - 1
    assert abs(computed["a"] - computed["b"]) <= 2 * 4 * max(sizes)


@given(seed=st.integers(-(2**63), 2**63 - 1))
def test_s8_the_answers_of_a_request_draw_with_seeds_of_their_own(seed: int) -> None:
    """The first has the request's own; all are 64-bit signed and different."""
    seeds = [choice_seed(seed, choice) for choice in range(128)]
    assert seeds[0] == seed
    assert len(set(seeds)) == 128
    assert all(-(2**63) <= each < 2**63 for each in seeds)


@given(limit=st.integers(1, 10), length=st.integers(20, 80), num_streams=st.integers(1, 3))
def test_s2_a_long_prompt_takes_no_more_of_a_step_than_its_share_beside_streams(
    limit: int, length: int, num_streams: int
) -> None:
    """Beside decodes a step has at most `limit` prompt tokens, all of them used; without them the whole budget."""
    world = World(
        Shape(num_blocks=400, block_size=4, max_num_seqs=4, max_num_batched_tokens=40,
              prefill_tokens_beside_decodes=limit, enable_prefix_caching=False)
    )  # fmt: skip
    streams = [world.records[world.submit([1, 2], forever(100))] for _ in range(num_streams)]
    while not all(stream.given[0] for stream in streams):
        world.step()
    late = world.records[world.submit([1] * length, ONE)]
    before = len(world.plans)
    while late.finished is None:
        world.step()
    shares = [plan.num_tokens - num_streams for plan in world.plans[before:]]
    assert shares == [limit] * (length // limit) + [length % limit] * bool(length % limit)
    for stream in streams:
        world.abort(stream.request.id)
    alone = world.submit([2] * 30, ONE)
    world.step()
    assert world.plans[-1].num_tokens == 30
    assert world.records[alone].finished is not None


@given(num_waiting=st.integers(70, 150), policy=st.sampled_from(["fcfs", "priority", "fair"]), data=st.data())
def test_s3_s5_who_ends_while_waiting_leaves_the_others_in_their_order(
    num_waiting: int, policy: str, data: st.DataObject
) -> None:
    """Most of a long queue goes away; who stays is served in the order in which it came."""
    world = World(Shape(num_blocks=400, block_size=4, max_num_seqs=1, policy=policy, enable_prefix_caching=False))
    records = [world.records[world.submit([1], ONE)] for _ in range(num_waiting)]
    staying = data.draw(st.sets(st.integers(0, num_waiting - 1), max_size=5))
    for number, record in enumerate(records):
        if number not in staying:
            world.abort(record.request.id)
    assert world.scheduler.num_waiting == len(staying)
    served = []
    while any(record.finished is None for record in records):
        world.step()
        served += [number for number in sorted(staying) if records[number].finished and number not in served]
    assert served == sorted(staying)


@given(n=st.integers(1, 4), most=st.integers(2, 30), num_blocks=st.integers(1, 40), block_size=st.integers(1, 4))
def test_s6_a_search_is_refused_exactly_when_its_beams_cannot_all_be_there(
    n: int, most: int, num_blocks: int, block_size: int
) -> None:
    """All beams of full length together must fit the pool."""
    assume(most <= num_blocks * block_size)
    world = World(Shape(num_blocks=num_blocks, block_size=block_size, max_num_seqs=4))
    params = SamplingParams(n=n, max_tokens=most - 1, use_beam_search=True, ignore_eos=True)
    record = world.records[world.submit([1], params)]
    assert (record.finished is FinishReason.ERROR) == (n * -(-most // block_size) > num_blocks)
    world.finish(4 * most * n + 20)


def repeats(tokens: list[int], least: int, most: int, count: int) -> bool:
    """The naive look: some pattern stands `count` times at the end."""
    return any(
        len(tokens) >= size * count and tokens[-size * count :] == tokens[-size:] * count
        for size in range(least, most + 1)
    )


@given(
    answer=st.lists(st.integers(0, 2), max_size=40),
    prompt=st.lists(st.integers(0, 2), max_size=5),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    count=st.integers(2, 4),
)
def test_an_answer_that_repeats_itself_is_noticed_at_its_first_repetition(
    answer: list[int], prompt: list[int], sizes: tuple[int, int], count: int
) -> None:
    """Token by token the detector says what a look at the whole answer says; the prompt does not count."""
    least, most = min(sizes), max(sizes)
    params = RepetitionDetection(min_pattern_size=least, max_pattern_size=most, min_count=count)
    detector = RepetitionDetector(params)
    tokens = list(prompt)
    for length, token in enumerate(answer, 1):
        tokens.append(token)
        said = detector.push(tokens, len(prompt))  # type: ignore[arg-type]
        assert said == repeats(answer[:length], least, most, count)
        if said:
            break


@settings(max_examples=3)
@given(num_keys=st.integers(1030, 1200))
def test_s3_a_key_that_was_given_much_is_remembered_among_a_thousand(num_keys: int) -> None:
    """Counters that say nothing are forgotten; that of a heavy key is not, however many keys came since."""
    world = World(
        Shape(num_blocks=400, block_size=4, max_num_seqs=1, max_num_batched_tokens=400, policy="fair",
              enable_prefix_caching=False)
    )  # fmt: skip
    world.submit([1] * 300, ONE, key="heavy")
    world.step()
    for number in range(num_keys):
        world.submit([1], ONE, key=f"key{number}")
        world.step()
    heavy = world.records[world.submit([1] * 3, ONE, key="heavy")]
    light = world.records[world.submit([1] * 3, ONE, key="light")]
    world.step()
    assert (heavy.finished, light.finished) == (None, FinishReason.LENGTH)
    world.finish(5)
