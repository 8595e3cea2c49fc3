"""What compiling grammars does to a stream that runs: the 99th percentile of its gaps with and without, in one run.

    python -m bench.compile [--model MODEL] [--seconds 6] [--rounds 5] [--compiling 2]

A stream of the engine runs all the time. In turns nothing else is done for some seconds, and then as long JSON schemas
that nobody has sent before are compiled, several being asked for at once, of which the engine compiles one at a time.
Each schema has twelve properties of several kinds. A step takes longer as the stream grows, so a turn of compiling is
compared with the mean of the quiet ones before and after it. Nothing else may run on the machine.
"""

import argparse
import itertools
import statistics
from typing import Any

import trio

from triolet.engine.config import EngineConfig
from triolet.engine.core.grammar import GrammarSpec
from triolet.engine.core.params import SamplingParams
from triolet.engine.engine import Engine
from triolet.engine.open import open_engine

KINDS: list[dict[str, Any]] = [
    {"type": "string", "maxLength": 40},
    {"type": "integer", "minimum": 0, "maximum": 9999},
    {"type": "array", "items": {"type": "number"}, "maxItems": 5},
    {"enum": ["red", "green", "blue"]},
    {"type": "object", "properties": {"x": {"type": "boolean"}, "y": {"type": "null"}}, "required": ["x"]},
]
NUM_PROPERTIES = 12
WARM_S = 2.0


class Stream:
    """One answer that goes on, and the seconds between its tokens."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._gaps: list[float] = []

    async def run(self) -> None:
        params = SamplingParams(ignore_eos=True, temperature=0)
        while True:
            async with self._engine.generate("The sea", params) as outputs:
                last: float | None = None
                async for _ in outputs:
                    now = trio.current_time()
                    if last is not None:
                        self._gaps.append(now - last)
                    last = now

    def take(self) -> list[float]:
        """The gaps since the last call."""
        gaps, self._gaps = self._gaps, []
        return gaps


class Compiling:
    """Compiles one new schema after the other."""

    def __init__(self, engine: Engine, num_at_once: int) -> None:
        self._engine = engine
        self._num_at_once = num_at_once
        self._numbers = itertools.count()
        self.num_compiled = 0

    async def run(self, seconds: float) -> None:
        """For so long; and then until those have ended that had begun."""
        async with trio.open_nursery() as nursery:
            for _ in range(self._num_at_once):
                nursery.start_soon(self._compile, trio.current_time() + seconds)

    async def _compile(self, until: float) -> None:
        while trio.current_time() < until:
            number = next(self._numbers)
            names = [f"p{number}_{index}" for index in range(NUM_PROPERTIES)]
            properties = dict(zip(names, itertools.cycle(KINDS), strict=False))
            schema = {"type": "object", "properties": properties, "required": names}
            await self._engine.grammars.prepare(GrammarSpec.json_schema(schema))
            self.num_compiled += 1


def p99(gaps: list[float]) -> float:
    return statistics.quantiles(gaps, n=100)[98]


async def measure(given: argparse.Namespace) -> None:
    async with open_engine(EngineConfig(model=given.model)) as engine, trio.open_nursery() as nursery:
        stream, compiling = Stream(engine), Compiling(engine, given.compiling)
        nursery.start_soon(stream.run)
        await engine.grammars.prepare(GrammarSpec.json_object())
        await trio.sleep(WARM_S)
        stream.take()

        async def busy() -> list[float]:
            await compiling.run(given.seconds)
            return stream.take()

        async def quiet() -> list[float]:
            await trio.sleep(given.seconds)
            return stream.take()

        quiets, turns = [await quiet()], []
        for _ in range(given.rounds):
            turns.append(await busy())
            quiets.append(await quiet())
        nursery.cancel_scope.cancel()
    report(quiets, turns)
    print(f"{compiling.num_compiled} schemas were compiled in {given.rounds} rounds of at least {given.seconds:g} s")


def report(quiets: list[list[float]], turns: list[list[float]]) -> None:
    for name, rounds in (("alone", quiets), ("while schemas are compiled", turns)):
        median = statistics.median(statistics.median(gaps) for gaps in rounds)
        high = statistics.median(map(p99, rounds))
        num_gaps = sum(map(len, rounds))
        print(f"{name:>28}: p50 {median * 1e3:6.2f} ms   p99 {high * 1e3:6.2f} ms   of {num_gaps} gaps")
    beside = list(zip(quiets, turns, quiets[1:], strict=False))
    for name, kind in (("p99", p99), ("p50", statistics.median)):
        ratios = sorted(2 * kind(during) / (kind(before) + kind(after)) for before, during, after in beside)
        print(f"ratio of {name}: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f} by round)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="as of triolet serve; without it the built-in one")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compiling", type=int, default=2)
    trio.run(measure, parser.parse_args())


if __name__ == "__main__":
    main()
