"""One request's story: every stage with its moment, in numbers alone, kept for a while after the end."""

import trio
import trio.testing

from triolet.engine.core.events import FinishReason, PreemptReason
from triolet.engine.core.params import SamplingParams
from triolet.engine.observer import AbortReason
from triolet.engine.open import run_engine
from triolet.engine.options import RequestOptions
from triolet.engine.story import EVENTS_MAX, Story, StoryState

from .simulated import simulate


async def test_a_story_from_queue_to_end(autojump_clock: trio.testing.MockClock) -> None:
    """A prompt in two chunks, four tokens, each moment a step after the last; its reader took every delta."""
    simulation = simulate(max_num_batched_tokens=5, max_num_seqs=2)
    async with run_engine(simulation.parts) as engine:
        params = SamplingParams(max_tokens=4)
        async with engine.generate("hello hi\n", params, request_id="mine") as stream:
            _ = [output async for output in stream]
        (story,) = engine.stories("mine")
    start = story.arrival_time
    assert [(moment - start, tokens) for moment, tokens in story.chunks] == [(0.0, 5), (1.0, 4)]
    assert story.tokenized_time == story.admitted_time == start
    assert story.first_token_time == start + 2
    assert story.last_token_time == story.ended_time == start + 5
    assert (story.num_prompt_tokens, story.num_cached_tokens, story.num_output_tokens) == (9, 0, 4)
    assert (story.num_deltas, story.num_preemptions, story.max_tokens) == (4, 0, 4)
    assert (story.state, story.finish_reason, story.abort_reason) == (StoryState.ENDED, FinishReason.LENGTH, None)


async def test_a_preemption_is_told_with_its_reason(autojump_clock: trio.testing.MockClock) -> None:
    """Two sequences in a memory for one and a half: the younger gives way for want of blocks, and goes on later."""
    simulation = simulate(num_blocks=10, block_size=4)
    texts = ("a rather long\n", "another long\n")
    async with run_engine(simulation.parts, check=True) as engine:

        async def ask(text: str) -> None:
            async with engine.generate(text, request_id=text[:7]) as stream:
                said = "".join([output.text async for output in stream])
            assert said == text[:-1]

        async with trio.open_nursery() as nursery:
            for text in texts:
                nursery.start_soon(ask, text)
        stories = engine.stories()
        preempted = [story for story in stories if story.num_preemptions]
        assert sum(story.num_preemptions for story in stories) == engine.stats().preemptions
    assert preempted
    assert {reason for story in preempted for _, reason in story.preemptions} == {PreemptReason.BLOCKS}
    assert all(story.finish_reason is FinishReason.STOP for story in stories)


async def test_the_states_of_open_requests(mock_clock: trio.testing.MockClock) -> None:
    """One decodes or computes its prompt, another waits for its place."""
    async with (
        run_engine(simulate(max_num_seqs=1).parts) as engine,
        engine.generate("hello\n", request_id="first") as stream,
        engine.generate("wait\n", request_id="second"),
    ):
        await trio.testing.wait_all_tasks_blocked()
        assert [(story.name, story.state) for story in engine.stories()] == [
            ("first", StoryState.PREFILL),
            ("second", StoryState.WAITING),
        ]
        mock_clock.jump(1)
        await anext(stream)
        assert engine.stories("first")[0].state is StoryState.DECODE


async def test_only_the_last_stories_are_kept(autojump_clock: trio.testing.MockClock) -> None:
    """Of five requests the last two, the newest first; a name that nobody had is no story."""
    simulation = simulate(num_kept_requests=2)
    async with run_engine(simulation.parts) as engine:
        for name in "abcde":
            async with engine.generate("hi\n", request_id=name) as stream:
                _ = [output async for output in stream]
        assert [story.name for story in engine.stories()] == ["e", "d"]
        assert engine.stories("a") == engine.stories("nobody") == []


async def test_a_story_says_why_it_was_cut_short(autojump_clock: trio.testing.MockClock) -> None:
    """By its deadline while it was tokenized; by its reader, who left."""
    async with run_engine(simulate().parts) as engine:
        options = RequestOptions(deadline=trio.current_time())
        async with engine.generate("late\n", request_id="late", options=options) as stream:
            _ = [output async for output in stream]
        async with engine.generate("a long answer\n", request_id="left") as stream:
            await anext(stream)
        await trio.sleep(2)
        late, left = engine.stories("late")[0], engine.stories("left")[0]
    assert (late.finish_reason, late.abort_reason) == (FinishReason.TIMEOUT, AbortReason.DEADLINE)
    assert (left.finish_reason, left.abort_reason) == (FinishReason.ABORT, AbortReason.LEFT)


def test_a_story_has_a_bound() -> None:
    """Of chunks and preemptions beyond it the count is kept."""
    story = Story(name="long", arrival_time=0.0)
    for number in range(EVENTS_MAX + 10):
        story.chunk(float(number), 1)
        story.preempted(float(number), PreemptReason.PRIORITY)
    assert (story.num_chunks, len(story.chunks)) == (EVENTS_MAX + 10, EVENTS_MAX)
    assert (story.num_preemptions, len(story.preemptions)) == (EVENTS_MAX + 10, EVENTS_MAX)
