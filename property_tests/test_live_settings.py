"""The scheduler's laws while its settings change: slots, budget and policy, at any step boundary.

S1  from the next plan on the new budget and the new sequence cap hold (asserted by the device)
S2  whoever decodes and keeps its slot gets its token in every step
S3  who waits is admitted in the new order; a change of the policy to itself changes nothing
S4  who must give its slot back is the worst that runs, and keeps its place
S6, S7, S8  as ever: nothing stands still, one terminal event each, everybody's tokens are those of the request alone
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.core.params import SamplingParams
from triolet.engine.core.policy import POLICIES, make_policy

from .test_scheduler import most_steps, requests, shapes
from .world import Shape, World


@given(data=st.data())
def test_s1_s6_s7_s8_laws_hold_while_settings_change(data: st.DataObject) -> None:
    """Arrivals, steps, aborts, faults, and changes of all three settings, in any order, with plans made ahead."""
    world = World(data.draw(shapes()))
    most_seqs = world.shape.max_num_seqs
    for _ in range(data.draw(st.integers(1, 40))):
        match data.draw(
            st.sampled_from(["submit", "submit", "step", "step", "step", "abort", "slots", "policy", "lose"])
        ):
            case "submit":
                prompt, params, rest = data.draw(requests(world.shape))
                world.submit(prompt, params, **rest)
            case "step":
                world.step()
            case "abort" if world.open:
                world.abort(data.draw(st.sampled_from(world.open)).request.id)
            case "slots":
                low = world.scheduler.most_answers
                slots = data.draw(st.integers(min(low, most_seqs), most_seqs))
                budget = data.draw(st.integers(slots, world.shape.max_num_batched_tokens))
                world.set_limits(max_num_seqs=slots, max_num_batched_tokens=budget)
            case "policy":
                world.scheduler.set_policy(make_policy(data.draw(st.sampled_from(sorted(POLICIES)))))
            case "lose":
                limits = world.device.limits
                world.lose_device()
                world.device.limits = limits
        world.scheduler.check()
    world.finish(most_steps(world))


@given(data=st.data())
def test_s2_s4_the_worst_give_their_slots_back_and_the_others_notice_nothing(data: st.DataObject) -> None:
    """Of some that decode the latest wait again; the first get a token in every step, and nobody comes before them."""
    running = data.draw(st.integers(2, 6))
    kept = data.draw(st.integers(1, running - 1))
    depth = data.draw(st.sampled_from([1, 2]))
    world = World(
        Shape(num_blocks=400, block_size=4, max_num_seqs=running, max_num_batched_tokens=running + 20, depth=depth)
    )
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    records = [world.records[world.submit([1, 2, 3], params)] for _ in range(running)]
    while not all(record.given[0] for record in records):
        world.step()
    world.set_limits(max_num_seqs=kept, max_num_batched_tokens=running + 20)
    while world.scheduler.num_running > kept:
        world.step()
    assert world.scheduler.num_running == kept
    assert world.scheduler.stats.num_preemptions == running - kept
    world.scheduler.check()
    for _ in range(3):
        before = [len(record.given[0]) for record in records]
        world.step()
        got = [len(record.given[0]) - count for record, count in zip(records, before, strict=True)]
        assert got == [1] * kept + [0] * (running - kept)
    world.finish(most_steps(world))


@given(n=st.integers(2, 4), steps=st.integers(0, 3), beams=st.booleans())
def test_s6_the_answers_of_an_open_request_keep_their_slots(n: int, steps: int, beams: bool) -> None:
    """Fewer would let it wait for ever: that is refused as our own mistake, until it has ended; so many do."""
    world = World(Shape(num_blocks=64, block_size=4, max_num_seqs=6, max_num_batched_tokens=32))
    params = SamplingParams(n=n, max_tokens=4, ignore_eos=True, use_beam_search=beams)
    request = world.submit([1, 2, 3], params)
    for _ in range(steps):
        world.step()
    assert world.scheduler.most_answers == n
    with pytest.raises(AssertionError, match=f"^an open request needs {n} sequences at once$"):
        world.set_limits(max_num_seqs=n - 1, max_num_batched_tokens=32)
    world.set_limits(max_num_seqs=n, max_num_batched_tokens=32)
    world.submit([4], SamplingParams(n=n + 1, max_tokens=1))
    assert [record.request.id for record in world.open] == [request], "one of more answers has failed at once"
    world.finish(most_steps(world))
    world.set_limits(max_num_seqs=1, max_num_batched_tokens=32)


@given(data=st.data())
def test_s3_who_waits_is_admitted_by_the_policy_that_holds(data: st.DataObject) -> None:
    """One slot; a change of policy while all wait: the order is that which the new policy had given from the start."""
    priorities = data.draw(st.lists(st.integers(-2, 2), min_size=2, max_size=8))
    before, after = (data.draw(st.sampled_from(sorted(POLICIES))) for _ in range(2))
    world = World(Shape(num_blocks=64, block_size=4, max_num_seqs=1, max_num_batched_tokens=32, policy=before))
    for priority in priorities:
        world.submit([1, 2], SamplingParams(max_tokens=2, ignore_eos=True), priority=priority)
    world.scheduler.set_policy(make_policy(after))
    order: list[int] = []
    while world.open:
        world.step()
        for number, record in enumerate(world.records.values()):
            if record.num_cached_tokens is not None and number not in order:
                order.append(number)
    arrivals = list(range(len(priorities)))
    expected = sorted(arrivals, key=lambda number: priorities[number]) if after == "priority" else arrivals
    assert order == expected
