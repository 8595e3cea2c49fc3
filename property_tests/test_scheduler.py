"""The scheduler's laws S1 to S8, on a readable memory (see memory.py and world.py).

S1  the token budget and the sequence cap hold in every step (asserted by the device)
S2  a decoding sequence gets its token every step unless it is preempted
S3  first come, first served: requests are admitted in the order they came (within a priority; within a fairness key)
S4  preemption only for want of blocks, or for a better priority; it changes nobody's text, the victim keeps its place
S5  after an abort no later plan names the sequence, and its blocks are back
S6  if anything can run the plan is not empty; without arrivals everything finishes within a stated number of steps
S7  every request gets exactly one terminal event, after its last token
S8  each request's tokens, or its vector, are those of the request run alone, whatever was around it
"""

from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from triolet.engine.core.events import FinishReason
from triolet.engine.core.grammar import GrammarSpec
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.pooling import POOLINGS, Pooling

from .memory import MOST_FORCED
from .world import CUT_OFF, Shape, World


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """The swarm: pools from barely one sequence, budgets from 1, blocks of 1 to 32 tokens, up to 3 plans ahead."""
    max_num_seqs = draw(st.integers(1, 6))
    return Shape(
        block_size=draw(st.sampled_from([1, 2, 3, 4, 8, 16, 32])),
        num_blocks=draw(st.integers(2, 24)),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + draw(st.integers(0, 20)),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 1, 3, 8])),
        prefill_tokens_beside_decodes=draw(st.sampled_from([0, 0, 1, 4])),
        enable_prefix_caching=draw(st.booleans()),
        depth=draw(st.sampled_from([1, 1, 2, 3])),
        jump_forward=draw(st.booleans()),
        policy=draw(st.sampled_from(["fcfs", "fcfs", "priority", "fair"])),
        windows=draw(st.sampled_from([(None,), (None,), (None, 5), (7,)])),
        vocab_size=draw(st.sampled_from([2, 3, 8, 64])),
    )


@st.composite
def requests(draw: st.DrawFn, shape: Shape) -> tuple[list[int], SamplingParams, dict[str, Any]]:
    """A prompt of few different tokens (so that prefixes are shared), and an answer that fits the pool with it."""
    longest = min(shape.max_model_len - 1, 60)
    prompt = draw(st.lists(st.integers(1, 2), min_size=1, max_size=max(1, longest)))
    max_tokens = draw(st.integers(1, max(1, min(shape.max_model_len - len(prompt), 40))))
    kind = draw(st.sampled_from(["plain", "plain", "beams", "grammar"]))
    params = SamplingParams(
        n=draw(st.sampled_from([1, 1, 1, 2, 3])),
        use_beam_search=kind == "beams",
        grammar=GrammarSpec.regex("any") if kind == "grammar" else None,
        length_penalty=draw(st.sampled_from([0.0, 1.0, 2.0])),
        max_tokens=max_tokens,
        min_tokens=draw(st.sampled_from([0, 0, min(3, max_tokens)])),
        ignore_eos=draw(st.booleans()),
        stop_token_ids=draw(st.sampled_from([(), (), (1,)])),
    )
    rest = {
        "salt": draw(st.sampled_from(["", "", "salt"])),
        "priority": draw(st.integers(0, 2)),
        "key": draw(st.sampled_from(["a", "b"])),
    }
    if draw(st.integers(0, 7)) == 0:
        return prompt, SamplingParams(max_tokens=1), {**rest, "pooling": Pooling(kind=draw(st.sampled_from(POOLINGS)))}
    return prompt, params, rest


def most_steps(world: World) -> int:
    """How many steps the open requests may take when nobody comes any more: no step is empty while something is open,
    and even if each token of an answer made every other sequence start anew, no more than this would be computed."""
    num_sequences = sum(record.request.params.n for record in world.open)
    num_tokens = sum(
        record.request.params.n * (len(record.request.prompt_token_ids) + (record.request.params.max_tokens or 0))
        for record in world.open
    )
    return 10 + num_tokens * (2 + num_sequences)


@given(data=st.data())
def test_s6_s7_s8_a_batch_of_requests_finishes_and_each_is_as_if_alone(data: st.DataObject) -> None:
    """S6, S7, S8: all requests at once, in any configuration, end with the tokens of their solo runs."""
    shape = data.draw(shapes())
    world = World(shape)
    for prompt, params, rest in data.draw(st.lists(requests(shape), min_size=1, max_size=8)):
        world.submit(prompt, params, **rest)
    world.finish(most_steps(world))


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, steps and aborts in any order, then no more arrivals."""

    world: World

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.world = World(data.draw(shapes()))

    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        prompt, params, rest = data.draw(requests(self.world.shape))
        if data.draw(st.integers(0, 4)) == 0:
            rest["deadline"] = self.world.now + data.draw(st.integers(0, 30))
        self.world.submit(prompt, params, **rest)

    @rule(steps=st.integers(1, 8))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.world.step()

    @rule(fault=st.sampled_from(["device lost", "step fails", "step is repeated"]))
    def s7_s8_a_fault_of_the_device(self, fault: str) -> None:
        """Who runs starts anew where it was, or fails; nobody else notices, and no block is lost."""
        if fault == "device lost":
            self.world.lose_device()
        else:
            self.world.fail_step(requeue=fault == "step is repeated")

    @precondition(lambda self: self.world.open)
    @rule(data=st.data())
    def s5_abort(self, data: st.DataObject) -> None:
        record = data.draw(st.sampled_from(self.world.open))
        self.world.abort(record.request.id)
        assert record.finished in CUT_OFF

    @invariant()
    def laws_hold(self) -> None:
        if hasattr(self, "world"):
            self.world.scheduler.check()

    @invariant()
    def s3_first_come_first_served(self) -> None:
        if hasattr(self, "world"):
            for class_ in self.world.classes():
                admitted = [record.num_cached_tokens is not None for record in class_ if record.finished not in CUT_OFF]
                assert admitted == sorted(admitted, reverse=True), "S3: nobody is admitted before an earlier one"

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish(most_steps(self.world))


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(stateful_step_count=40)


@given(data=st.data())
def test_s2_a_decoding_sequence_gets_a_token_in_every_step(data: st.DataObject) -> None:
    """S2: with blocks for all, a request that has begun to answer gets one token a step, whoever arrives."""
    num_seqs = data.draw(st.integers(2, 6))
    budget = num_seqs + data.draw(st.integers(0, 6))
    world = World(Shape(num_blocks=400, block_size=4, max_num_seqs=num_seqs, max_num_batched_tokens=budget))
    first = world.records[world.submit([1, 2, 3], SamplingParams(max_tokens=30, ignore_eos=True))]
    while not first.given[0]:
        world.step()
    for _ in range(29):
        if data.draw(st.booleans()):
            world.submit([1] * data.draw(st.integers(1, 50)), SamplingParams(max_tokens=5))
        before = len(first.given[0])
        world.step()
        assert len(first.given[0]) == before + 1
    assert first.finished is FinishReason.LENGTH


@given(
    prompt=st.lists(st.integers(1, 9), min_size=1, max_size=20),
    max_tokens=st.integers(1, 40),
    n=st.integers(1, 2),
    vocab_size=st.sampled_from([2, 7, 16, 64]),
)
def test_s8_each_forced_token_saves_a_step_and_changes_nothing(
    prompt: list[int], max_tokens: int, n: int, vocab_size: int
) -> None:
    """S8: with and without jumping a request gives what it gives alone (`World` compares); alone in the batch, it needs
    one step less for each token that its grammar forced."""
    params = SamplingParams(max_tokens=max_tokens, n=n, grammar=GrammarSpec.regex("any"))
    num_steps = []
    for jump_forward in (True, False):
        world = World(Shape(num_blocks=64, block_size=4, vocab_size=vocab_size, jump_forward=jump_forward))
        world.submit(prompt, params)
        world.finish(200)
        num_steps.append(len(world.plans))
        forced = world.scheduler.stats.forced_tokens
        if jump_forward and n == 1:
            saved = forced
    if n == 1:
        assert num_steps[0] == num_steps[1] - saved
    assert num_steps[0] <= num_steps[1]
    assert forced == 0


@given(data=st.data())
def test_s2_an_answer_that_jumps_gets_a_token_in_every_step(data: st.DataObject) -> None:
    """S2: forced tokens are computed before any prompt, and are not held to the share of prompts: each step that has
    room for them gives the answer a token at least, whoever arrives."""
    num_seqs = data.draw(st.integers(2, 5))
    world = World(
        Shape(
            num_blocks=600,
            block_size=4,
            vocab_size=8,
            max_num_seqs=num_seqs,
            max_num_batched_tokens=num_seqs * (1 + MOST_FORCED),
            prefill_tokens_beside_decodes=1,
        )
    )
    params = SamplingParams(max_tokens=40, grammar=GrammarSpec.regex("any"))
    first = world.records[world.submit(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)), params)]
    while not first.given[0] and first.finished is None:
        world.step()
    while first.finished is None:
        if data.draw(st.booleans()):
            world.submit([1] * data.draw(st.integers(1, 50)), attrs.evolve(params, max_tokens=5))
        before = len(first.given[0])
        world.step()
        assert len(first.given[0]) > before or first.finished is not None
