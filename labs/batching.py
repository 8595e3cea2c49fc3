"""Watch continuous batching: requests join and leave a running batch at any step, and nobody waits for a batch to end.

    python -m labs.batching

Three slots, four requests that come at different moments. Each row is a step of the device.
"""

import sys

import trio

from .lab import Lab, ask, greedy, open_watched, prompt, run

TITLE = "Watch continuous batching"
NAMES = "ABCD"
LENGTHS = {"A": (40, 26), "B": (24, 14), "C": (70, 16), "D": (16, 5)}
"""Tokens of the prompt and of the answer."""
COMES_AFTER = {"B": ("A", 3), "C": ("B", 2), "D": ("C", 1)}
"""Who comes once somebody else has had so many tokens."""


async def story(lab: Lab) -> None:
    prompts = {name: prompt(number, LENGTHS[name][0]) for number, name in enumerate(NAMES)}
    seen = dict.fromkeys(NAMES, 0)
    moved = {name: trio.Event() for name in NAMES}
    lab.say("""The engine has three slots (max_num_seqs=3). A comes first, B when A has 3 tokens, C when B has 2, D
        when C has one: D finds no slot free and waits. Below, p5 means that 5 tokens of a prompt were computed for the
        request in that step, and # that it made one token of its answer.""")
    async with open_watched(max_num_seqs=3, max_num_batched_tokens=64) as (engine, watch):
        for name in NAMES:
            watch.call(name, prompts[name])

        async def request(name: str) -> None:
            if name in COMES_AFTER:
                other, count = COMES_AFTER[name]
                while seen[other] < count:
                    await moved[other].wait()

            def note(output: object) -> None:
                seen[name] = output.num_output_tokens  # type: ignore[attr-defined]
                moved[name].set()
                moved[name] = trio.Event()

            await ask(engine, prompts[name], greedy(LENGTHS[name][1]), note)

        async with trio.open_nursery() as nursery:
            for name in NAMES:
                nursery.start_soon(request, name)
    rows = []
    for step, time in zip(watch.steps, watch.times, strict=True):
        cells = []
        for name in NAMES:
            part = step.part_of(name)
            cells.append("" if part is None else f"p{part.num_tokens}" if part.num_tokens > 1 else "#")
        rows.append((step.plan.step, *cells, step.plan.num_tokens, f"{1e3 * time.device_seconds:.1f}"))
    lab.table(("step", *NAMES, "tokens", "ms"), rows)
    tell(lab, [{name for name, _ in step.parts} for step in watch.steps], len(watch.steps))


def tell(lab: Lab, present: list[set[str]], num_steps: int) -> None:
    """What the table shows."""
    alone = sum(2 if length > 64 else 1 for length, _ in LENGTHS.values())
    alone += sum(answer - 1 for _, answer in LENGTHS.values())
    first = {name: next(i for i, who in enumerate(present) if name in who) for name in NAMES}
    last = {name: max(i for i, who in enumerate(present) if name in who) for name in NAMES}
    lab.say(f"""One after the other these requests would take {alone} steps; together they took {num_steps}. A step
        with three decodes costs little more than one with a single decode, because the weights are read once for
        all.""")
    lab.claim("B joined while A was decoding, without A having to end", first["A"] < first["B"] < last["A"])
    lab.claim("no step had more than three sequences", max(map(len, present)) == 3)
    ended = min(last.values())
    lab.claim("D took the slot of the first request that ended, in the very next step", first["D"] == ended + 1)
    lab.claim(
        "whoever had joined was in every step until its last token",
        all(name in who for name in NAMES for who in present[first[name] : last[name] + 1]),
    )
    lab.claim(f"{num_steps} steps, fewer than the {alone} of one after the other", num_steps < alone)
    lab.end_claims()


def main() -> int:
    return run(TITLE, story)


if __name__ == "__main__":
    sys.exit(main())
