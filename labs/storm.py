"""Cancel storm: most clients leave, in every stage; nobody else notices, and everything is given back.

python -m labs.storm
"""

import random
import sys
from collections import Counter

import attrs
import trio

from triolet.engine.engine import Engine
from triolet.engine.story import StoryState

from .lab import Answer, Lab, Watch, ask, ask_all, greedy, open_watched, prompt, run

TITLE = "Cancel storm"
NUM_REQUESTS, NUM_STAYING = 60, 12
ANSWER = 24
SETTINGS = {"max_num_seqs": 16, "max_num_batched_tokens": 256, "long_prefill_token_threshold": 32}


@attrs.frozen
class Leaving:
    """How one client left."""

    name: str
    stage: str
    num_steps_planned: int
    """When it left: no later step may name it."""


async def leave(engine: Engine, watch: Watch, number: int, left: list[Leaving]) -> None:
    """Ask, and leave: soon after asking, in the middle of a long prompt, or after some tokens."""
    chance, name = random.Random(number), f"r{number}"
    way = ("soon", "in its prompt", "in its answer")[number % 3]
    tokens = prompt(number, 320 if way == "in its prompt" else chance.randrange(20, 100))
    watch.call(name, tokens)
    last_step, enough = len(watch.steps) + chance.randrange(1, 4), chance.randrange(1, ANSWER)

    def is_time() -> bool:
        return len(watch.steps) >= last_step if way == "soon" else watch.num_steps_of(name) >= 3

    async with engine.generate(tokens, greedy(ANSWER), request_id=name) as stream:
        if way == "in its answer":
            async for output in stream:
                if output.num_output_tokens >= enough:
                    break
        else:
            await watch.wait_until(is_time)
    (story,) = engine.stories(name)
    left.append(Leaving(name, str(story.state), len(watch.steps)))


async def story(lab: Lab) -> None:
    chance = random.Random(0)
    staying = sorted(chance.sample(range(NUM_REQUESTS), NUM_STAYING))
    stay_prompts = [prompt(number, 30 + number) for number in staying]
    left: list[Leaving] = []
    kept: dict[int, Answer] = {}
    lab.say(f"""{NUM_REQUESTS} requests at once for {SETTINGS["max_num_seqs"]} slots; all but {NUM_STAYING} leave,
        some while they wait, some in the middle of their prompt, some after a few tokens. To leave is to leave the
        scope of engine.generate: nothing is awaited, and the next plan is made without the request.""")
    async with open_watched(**SETTINGS) as (engine, watch):
        num_blocks = engine.stats().num_free_blocks

        async def stay(number: int, tokens: tuple[int, ...]) -> None:
            watch.call(f"r{number}", tokens)
            kept[number] = await ask(engine, tokens, greedy(ANSWER))

        async with trio.open_nursery() as nursery:
            for number in range(NUM_REQUESTS):
                if number in staying:
                    nursery.start_soon(stay, number, stay_prompts[staying.index(number)])
                else:
                    nursery.start_soon(leave, engine, watch, number, left)
        # Who has left knows nothing of his end: the scheduler hears of it at the next step boundary, and then tells it.
        await watch.wait_until(lambda: watch.num_ended == NUM_REQUESTS)
        stats = engine.stats()
        states = Counter(story.state for story in engine.stories())
        alone = [(await ask_all(engine, [tokens], greedy(ANSWER)))[0] for tokens in stay_prompts]
    stages = Counter(leaving.stage for leaving in left)
    lab.table(("left while it was", "requests"), [(stage, stages[stage]) for stage in sorted(stages)])
    lab.say(f"""{stats.wasted_tokens} tokens were computed for nobody: those of the step that was on the device when
        their reader left. {stats.generation_tokens} were generated in all.""")
    late = [
        (leaving.name, step.plan.step)
        for leaving in left
        for step in watch.steps[leaving.num_steps_planned :]
        if step.part_of(leaving.name) is not None
    ]
    lab.claim(f"{NUM_REQUESTS - NUM_STAYING} clients left", len(left) == NUM_REQUESTS - NUM_STAYING)
    lab.claim(
        "some waited, some had their prompt computed, some were being answered",
        {"waiting", "prefill", "decode"} <= set(stages),
    )
    lab.claim("no step that was planned after a client had left named its request", not late)
    lab.claim("at most one token was wasted for each", stats.wasted_tokens <= len(left))
    lab.claim("nobody runs, nobody waits", (stats.running, stats.waiting) == (0, 0))
    lab.claim(f"all {num_blocks} blocks are free or cached", stats.num_free_blocks == num_blocks)
    lab.claim("every story has its end", states == {StoryState.ENDED: NUM_REQUESTS})
    lab.claim(
        "those that stayed say what they say alone",
        [kept[number].token_ids for number in staying] == [answer.token_ids for answer in alone],
    )
    lab.end_claims()


def main() -> int:
    return run(TITLE, story)


if __name__ == "__main__":
    sys.exit(main())
