"""Force preemption: more sequences than the KV cache holds, and every answer is still the one that it would be alone.

python -m labs.preemption
"""

import sys

from triolet.engine.core.events import PreemptReason

from .lab import BLOCK_SIZE, Lab, ask_all, greedy, open_watched, prompt, run

TITLE = "Force preemption"
NUM_REQUESTS = 6
PROMPT, ANSWER = 40, 56
NUM_BLOCKS = 20
BYTES_PER_BLOCK = 2 * 30 * 3 * 64 * BLOCK_SIZE * 4
"""K and V, 30 layers, 3 heads of 64 numbers, 4 bytes each: the built-in model in float32."""


async def story(lab: Lab) -> None:
    prompts = [prompt(number, PROMPT) for number in range(NUM_REQUESTS)]
    need = -(-(PROMPT + ANSWER) // BLOCK_SIZE)
    lab.say(f"""{NUM_REQUESTS} requests of {PROMPT} + {ANSWER} tokens need {need} blocks each at their end,
        {NUM_REQUESTS * need} together; the cache has {NUM_BLOCKS}. All begin at once, because their prompts fit. When
        a running one needs a block and none is free, the one that came last gives all of its own back, waits in its old
        place, and computes its tokens again later, as far as they are no longer cached.""")
    settings = {"dtype": "float32", "max_model_len": PROMPT + ANSWER, "max_num_batched_tokens": 512}
    async with open_watched(**settings, kv_cache_memory=NUM_BLOCKS * BYTES_PER_BLOCK) as (engine, watch):
        answers = await ask_all(engine, prompts, greedy(ANSWER))
        stories = list(reversed(engine.stories()))
        stats, num_steps = engine.stats(), len(watch.steps)
    async with open_watched(**settings) as (engine, _):
        alone = [(await ask_all(engine, [tokens], greedy(ANSWER)))[0] for tokens in prompts]
    rows = []
    for name, story in zip("ABCDEF", stories, strict=True):
        computed = sum(tokens for _, tokens in story.chunks)
        rows.append((name, story.num_preemptions, story.num_chunks, computed - PROMPT, story.num_output_tokens))
    lab.table(("request", "preempted", "chunks", "tokens computed again", "tokens of the answer"), rows)
    lab.say(f"""{stats.preemptions} preemptions in {num_steps} steps. The request that came first was never among
        them: it always gets on, so the load ends, whatever there is of it.""")
    preemptions = [story.num_preemptions for story in stories]
    lab.claim(f"the cache has {NUM_BLOCKS} blocks", stats.num_blocks == NUM_BLOCKS)
    lab.claim("there were preemptions", stats.preemptions > 0)
    lab.claim("the counter is the sum of what the stories tell", stats.preemptions == sum(preemptions))
    lab.claim(
        "each was for want of blocks",
        {reason for story in stories for _, reason in story.preemptions} == {PreemptReason.BLOCKS},
    )
    lab.claim("the first that came was not preempted, the last was", preemptions[0] == 0 < preemptions[-1])
    lab.claim("every request had its whole answer", all(len(answer.token_ids) == ANSWER for answer in answers))
    lab.claim(
        "and it is, token by token, what the model says to that prompt alone",
        [answer.token_ids for answer in answers] == [answer.token_ids for answer in alone],
    )
    lab.claim("all blocks are back", stats.num_free_blocks == NUM_BLOCKS)
    lab.end_claims()


def main() -> int:
    return run(TITLE, story)


if __name__ == "__main__":
    sys.exit(main())
