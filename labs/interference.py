"""Chunked prefill and interference: what a stream feels when a long prompt arrives, with its chunks large and small.

python -m labs.interference
"""

import itertools
import sys

import attrs
import trio

from .lab import Lab, SeenStep, ask, greedy, open_watched, prompt, run

TITLE = "Chunked prefill and interference"
LONG = 1200
STREAM = 48
ARRIVES_AFTER = 6
"""Tokens that the stream has had when the long prompt comes."""
SETTINGS = {
    "all at once": {"max_num_batched_tokens": 2048, "prefill_tokens_beside_decodes": 0},
    "steps of 256": {"max_num_batched_tokens": 256, "prefill_tokens_beside_decodes": 0},
    "64 beside decodes": {"max_num_batched_tokens": 2048, "prefill_tokens_beside_decodes": 64},
}


@attrs.frozen
class Seen:
    """One run."""

    steps: list[SeenStep]
    """From the stream's first token to its last."""
    chunks: list[int]
    largest_gap_s: float
    usual_gap_s: float
    seconds_to_first_token: float
    """Of the long prompt."""
    tokens: tuple[int, ...]


async def measure(**settings: object) -> Seen:
    times: list[float] = []
    enough = trio.Event()
    first_token_s = 0.0
    async with open_watched(max_num_seqs=8, **settings) as (engine, watch):
        watch.call("stream", prompt(0, 16))
        watch.call("long", prompt(1, LONG))

        def note(output: object) -> None:
            times.append(trio.current_time())
            if len(times) >= ARRIVES_AFTER:
                enough.set()

        async def arrive() -> None:
            nonlocal first_token_s
            await enough.wait()
            first_token_s = (await ask(engine, prompt(1, LONG), greedy(1))).seconds_to_first_token

        async with trio.open_nursery() as nursery:
            nursery.start_soon(arrive)
            answer = await ask(engine, prompt(0, 16), greedy(STREAM), note)
    gaps = sorted(after - before for before, after in itertools.pairwise(times))
    steps = [step for step in watch.steps if step.part_of("stream") is not None][1:]
    parts = [part for step in watch.steps if (part := step.part_of("long")) is not None]
    return Seen(steps, [p.num_tokens for p in parts], gaps[-1], gaps[len(gaps) // 2], first_token_s, answer.token_ids)


async def story(lab: Lab) -> None:
    lab.say(f"""A stream decodes, a token a step. After {ARRIVES_AFTER} tokens a prompt of {LONG} tokens arrives.
        Computed in one step it holds the stream up for as long as that step takes. In chunks, the stream gets its token
        with each of them, and the prompt takes somewhat longer.""")
    seen = {name: await measure(**settings) for name, settings in SETTINGS.items()}
    lab.table(
        ("", "chunks", "largest chunk", "usual gap, ms", "largest gap, ms", "long prompt's first token, ms"),
        [
            (
                name,
                len(found.chunks),
                max(found.chunks),
                *(f"{1e3 * s:.0f}" for s in (found.usual_gap_s, found.largest_gap_s, found.seconds_to_first_token)),
            )
            for name, found in seen.items()
        ],
    )
    lab.say("""max_num_batched_tokens bounds a step; prefill_tokens_beside_decodes bounds the prompts in a step in
        which somebody decodes, and leaves steps without decodes alone. On a CPU its default is 320.""")
    whole, chunked, beside = seen.values()
    lab.claim(f"at once: the prompt was one chunk of {LONG}", whole.chunks == [LONG])
    lab.claim(
        "steps of 256: 255 tokens of the prompt beside the stream's one",
        len(chunked.chunks) >= LONG // 255 and max(chunked.chunks[:-1]) <= 256,
    )
    lab.claim(
        "64 beside decodes: no chunk was larger while the stream decoded",
        max(chunk_beside(step) for step in beside.steps) == 64,
    )
    for name, found in seen.items():
        lab.claim(f"{name}: the stream got a token in every step until its last", len(found.steps) == STREAM - 1)
    lab.claim("the stream said the same each time", whole.tokens == chunked.tokens == beside.tokens)
    lab.end_claims()


def chunk_beside(step: SeenStep) -> int:
    part = step.part_of("long")
    return 0 if part is None else part.num_tokens


def main() -> int:
    return run(TITLE, story)


if __name__ == "__main__":
    sys.exit(main())
