"""Read the scheduler's log: the periodic line of `triolet serve`, under a load of prompts and then of answers.

python -m labs.logline
"""

import re
import sys

import trio

from triolet.api.log import Throughput
from triolet.engine.engine import Engine
from triolet.engine.stats import EngineStats

from .lab import BLOCK_SIZE, Lab, ask, greedy, open_watched, prompt, run

TITLE = "Read the scheduler's log"
NUM_REQUESTS, NUM_SLOTS = 8, 4
PHASES = {"prompts": (320, 2), "answers": (48, 40)}
"""Tokens of the prompt, and of the answer."""
LINE = re.compile(
    r"Avg prompt throughput: (\S+) tokens/s, Avg generation throughput: (\S+) tokens/s, Running: (\d+) reqs, "
    r"Waiting: (\d+) reqs, Preemptions: (\d+), \w+ KV cache usage: (\S+)%, Prefix cache hit rate: (\S+)%"
)


class Reader:
    """Writes the line at chosen moments, where the server does so every ten seconds, and reads it again."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._throughput = Throughput(engine.stats(), trio.current_time())
        self.lines: list[str] = []
        self.seconds: list[float] = []
        self.stats: list[EngineStats] = [engine.stats()]
        self._last_s = trio.current_time()

    def write(self) -> None:
        now_s, stats = trio.current_time(), self._engine.stats()
        line = self._throughput.line(stats, now_s)
        assert line is not None
        self.lines.append(line)
        self.seconds.append(now_s - self._last_s)
        self.stats.append(stats)
        self._last_s = now_s

    def figures(self, index: int) -> tuple[float, ...]:
        found = LINE.fullmatch(self.lines[index])
        assert found is not None
        return tuple(map(float, found.groups()))


async def load(engine: Engine, reader: Reader, length: int, answer: int) -> None:
    """All at once; a line when half of the tokens are there, and one at the end."""
    num_tokens, in_the_middle = 0, False

    def note(output: object) -> None:
        nonlocal num_tokens, in_the_middle
        num_tokens += len(output.token_ids)  # type: ignore[attr-defined]
        if not in_the_middle and num_tokens > NUM_SLOTS * answer // 2:
            in_the_middle = True
            reader.write()

    async with trio.open_nursery() as nursery:
        for number in range(NUM_REQUESTS):
            nursery.start_soon(ask, engine, prompt(number, length), greedy(answer), note)
    reader.write()


async def story(lab: Lab) -> None:
    lab.say(f"""{NUM_REQUESTS} requests at a time, {NUM_SLOTS} slots. First long prompts with answers of two tokens;
        then short prompts, the beginnings of the same ones, with long answers. A line is written in the middle of each
        phase, and one at its end; each covers the time since the one before.""")
    async with open_watched(max_num_seqs=NUM_SLOTS, max_num_batched_tokens=320) as (engine, _):
        reader = Reader(engine)
        for length, answer in PHASES.values():
            await load(engine, reader, length, answer)
    for index, line in enumerate(reader.lines):
        phase = list(PHASES)[index // 2]
        when = ("in the middle", "at the end")[index % 2]
        lab.quote(f"{phase}, {when}, after {reader.seconds[index]:.2f} s", line)
    lab.say("""How to read it: prompt throughput counts computed tokens only, so cached ones do not flatter it. Much
        prompt and little generation: the load is prefill, and what it waits for is arithmetic. The reverse: it is
        decoding, and waits for memory. Waiting above zero with KV usage low: the slots are short (--max-num-seqs), not
        the memory. Waiting with usage near 100 %, or preemptions that grow: the memory is short.""")
    check(lab, reader)


def check(lab: Lab, reader: Reader) -> None:
    """What the lines said, against the engine's counters."""
    first, first_end, second, second_end = (reader.figures(index) for index in range(4))
    lab.claim("while prompts were computed, prompt throughput was above generation", first[0] > first[1])
    lab.claim("while answers were made, generation was above it", second_end[1] > second_end[0])
    lab.claim(
        f"in the middle of the answers {NUM_SLOTS} ran and the others waited",
        second[2:4] == (NUM_SLOTS, NUM_REQUESTS - NUM_SLOTS),
    )
    lab.claim(
        "at the end of each phase nobody ran and no block was in use",
        first_end[2:4] == second_end[2:4] == (0, 0) and first_end[5] == second_end[5] == 0,
    )
    lab.claim("in between blocks were in use, and nobody was preempted", second[5] > 0 == second_end[4])
    counted = reader.stats[-1].generation_tokens
    told = sum(reader.figures(i)[1] * reader.seconds[i] for i in range(4))
    lab.claim(
        f"rates times seconds give {counted} generated tokens, as counted",
        abs(told - counted) < 0.5 + 0.06 * sum(reader.seconds),
    )  # a rate has one digit behind its point
    length = PHASES["answers"][0]
    hits = NUM_REQUESTS * ((length - 1) // BLOCK_SIZE * BLOCK_SIZE)
    seen = reader.stats[-1].prefix_hits - reader.stats[2].prefix_hits
    lab.claim(
        f"no prompt was found in the first phase; of the second {hits} tokens were", (first[6], seen) == (0, hits)
    )
    lab.end_claims()


def main() -> int:
    return run(TITLE, story)


if __name__ == "__main__":
    sys.exit(main())
