"""Measure prefix caching: what a shared beginning spares, how it is counted, and when it is not found.

python -m labs.prefixes
"""

import sys

from .lab import BLOCK_SIZE, Lab, ask, ask_all, greedy, open_watched, prompt, run

TITLE = "Measure prefix caching"
SHARED = 520
OWN = 24
NUM_REQUESTS = 6


async def story(lab: Lab) -> None:
    shared = prompt(0, SHARED)
    prompts = [shared + prompt(number, OWN) for number in range(1, NUM_REQUESTS + 1)]
    whole_blocks = SHARED // BLOCK_SIZE * BLOCK_SIZE
    lab.say(f"""{NUM_REQUESTS} prompts begin with the same {SHARED} tokens and end with {OWN} of their own. KV is
        kept in blocks of {BLOCK_SIZE} tokens, and a block is found again by the hash of all tokens up to its end: of
        {SHARED} shared tokens {SHARED // BLOCK_SIZE} whole blocks can be found, {whole_blocks} tokens. The
        {SHARED % BLOCK_SIZE} beyond them share a block with tokens that differ.""")
    rows, answers, stats = [], [], []
    async with open_watched() as (engine, _):
        for number, tokens in enumerate(prompts, 1):
            answers.append(await ask(engine, tokens, greedy(4)))
            rows.append(row(f"request {number}", answers[-1], len(tokens)))
        stats.append(engine.stats())
        await engine.controls.reset_prefix_cache()
        together = await ask_all(engine, prompts, greedy(4))
        rows += [row(f"together {i}", answer, len(prompts[0])) for i, answer in enumerate(together, 1)]
        again = await ask(engine, prompts[0], greedy(4))
        rows.append(row("request 1 again", again, len(prompts[0])))
    async with open_watched(enable_prefix_caching=False) as (engine, _):
        without = await ask_all(engine, prompts, greedy(4))
        rows.append(row("without caching", without[0], len(prompts[0])))
    lab.table(("", "prompt", "cached", "computed", "ms to the first token"), rows)
    lab.say("""One after the other, the first computes everything and the others find it. Then the cache is emptied,
        and all come at once: the first computes the beginning, and the others wait for it, block by block, instead of
        computing it five times more.""")
    lab.claim("the first request computed its whole prompt", answers[0].num_cached_tokens == 0)
    lab.claim(
        f"each later one found {whole_blocks} tokens, whole blocks of the shared beginning",
        all(answer.num_cached_tokens == whole_blocks for answer in answers[1:]),
    )
    lab.claim(
        "so did those that came at once, but for the one that computed it",
        sorted(answer.num_cached_tokens for answer in together) == [0] + [whole_blocks] * (NUM_REQUESTS - 1),
    )
    length = len(prompts[0])
    lab.claim(
        "the same prompt again found all its whole blocks, and left at least one token to compute",
        again.num_cached_tokens == (length - 1) // BLOCK_SIZE * BLOCK_SIZE,
    )
    queries, hits = stats[0].prefix_queries, stats[0].prefix_hits
    lab.claim(
        f"the counters say the same: {hits} of {queries} tokens were found, {hits / queries:.1%}",
        (queries, hits) == (NUM_REQUESTS * length, (NUM_REQUESTS - 1) * whole_blocks),
    )
    lab.claim(
        "cached or not, alone or together, the answers are the same tokens",
        [a.token_ids for a in answers] == [a.token_ids for a in together] == [a.token_ids for a in without],
    )
    lab.end_claims()


def row(name: str, answer: object, length: int) -> tuple[object, ...]:
    cached = answer.num_cached_tokens  # type: ignore[attr-defined]
    seconds = answer.seconds_to_first_token  # type: ignore[attr-defined]
    return (name, length, cached, length - cached, f"{1e3 * seconds:.0f}")


def main() -> int:
    return run(TITLE, story)


if __name__ == "__main__":
    sys.exit(main())
