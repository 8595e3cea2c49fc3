"""Whether `triolet simulate` says what the real engine does: the same trace on both, on this machine.

    python -m bench.agreement
    python -m bench.agreement --rounds 5 --quantization int8
    python -m bench.agreement --costs costs.json --trace trace.jsonl

First the engine's steps are measured by their shape: decodes of 1 to 32 sequences over short and long contexts, and
prompts in chunks of many sizes. A formula is fitted to them (engine/measured.py). Then a trace is played on the
engine, and in the simulator with that formula: Poisson arrivals faster than the machine serves, so that its
throughput decides, shared prefixes, clients that leave. Measuring and playing take turns, because the machine's
mood changes; each round has its own formula and its own trace. Prints both sides and the ratio of their
throughputs; exit status 1 when the median of the ratios is not within 15 %. Takes some two minutes on two cores;
nothing else should run.

A last line has the ratio with a formula that was fitted to the steps of the trace itself: what differs from 1 there is
the simulator's, what differs from that line is the machine's mood between measuring and playing.

`--costs` writes the formula of all rounds, for `triolet simulate --costs`; `--trace` the last round's trace, for its
`--arrivals`.
"""

import argparse
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import msgspec
import trio

from triolet.engine.assembly import EngineParts
from triolet.engine.build import build, make_device
from triolet.engine.config import EngineConfig
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.plan import StepPlan
from triolet.engine.core.scheduler import SchedulerConfig
from triolet.engine.cost import MirroredBatch, StepShape, shape_of
from triolet.engine.device import Device
from triolet.engine.engine import Engine
from triolet.engine.measured import MeasuredCost, fit_cost
from triolet.engine.observer import NoObserver, StepSeen
from triolet.engine.open import run_engine
from triolet.engine.simulation import Arrival, Load, Simulation, draw_trace

CLOSE = 0.15
MAX_NUM_SEQS = 32
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
CONTEXTS = (32, 600)
NUM_PREFIXES = 8
"""Sequences of a long context begin alike by so many: more are not computed anew, fewer would stay in the processor's
caches."""
STEPS = 10
"""Of each decode that is measured."""
PROMPTS = (2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 320, 512, 1024)
LOAD = Load(
    num_requests=60,
    requests_per_s=30.0,
    prompt_tokens=160,
    output_tokens=48,
    prefix_tokens=128,
    num_prefixes=4,
    cancel_share=0.1,
    cancel_within_s=4.0,
)

Measured = list[tuple[StepShape, float]]


class Watch(NoObserver):
    """In front of the device: the shape of each step, and the time from its planning until it has been taken in."""

    def __init__(self, device: Device) -> None:
        self.measured: Measured = []
        self.receive, self.watch, self.give_up = device.receive, device.watch, device.give_up
        self._device = device
        self._batch = MirroredBatch()
        self._shapes: dict[int, StepShape] = {}

    def send(self, plan: StepPlan) -> None:
        self._shapes[plan.step] = shape_of(self._batch.apply(plan))
        self._device.send(plan)

    async def restore(self) -> bool:
        self._batch.forget()
        return await self._device.restore()

    def step(self, seen: StepSeen) -> None:
        self.measured.append((self._shapes.pop(seen.step), seen.landed - seen.begun + seen.commit_seconds))

    def take(self) -> Measured:
        """What has been measured since the last call: the mean of steps that have one shape, or nearly. (The mean and
        not the median: what slows some steps slows the trace too.)"""
        alike: dict[tuple[int, int, int], Measured] = defaultdict(list)
        for shape, seconds in self.measured:
            alike[shape.num_tokens, shape.num_sampled, round(shape.num_pairs, -3)].append((shape, seconds))
        self.measured = []
        return [(group[0][0], statistics.fmean(seconds for _, seconds in group)) for group in alike.values()]


@attrs.frozen(kw_only=True)
class Figures:
    """What a trace came to."""

    tokens_per_s: float
    first_token_s: tuple[float, ...]
    per_token_s: tuple[float, ...]
    steps: int
    hit_rate: float
    cancelled: int


@asynccontextmanager
async def open_watched(config: EngineConfig) -> AsyncIterator[tuple[Engine, EngineParts, Watch]]:
    """`open_engine` with the watch in front of the device."""
    async with trio.open_nursery() as nursery:
        device = make_device(config)
        nursery.start_soon(device.run)
        try:
            parts = await build(config, device)
            watch = Watch(parts.device)
            async with run_engine(attrs.evolve(parts, device=watch), observer=watch) as engine:
                yield engine, parts, watch
        finally:
            device.close()


def params(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


async def ask(engine: Engine, prompt: Sequence[int], max_tokens: int) -> None:
    async with engine.generate(prompt, params(max_tokens)) as stream:
        async for _ in stream:
            pass


async def measure(engine: Engine, watch: Watch, rng: random.Random) -> Measured:
    """The steps of decodes and of prompts, each alone."""
    found: Measured = []

    def tokens(length: int) -> list[int]:
        return rng.choices(range(1000, 40_000), k=length)

    for length in PROMPTS:
        for _ in range(3):
            await ask(engine, tokens(length), 1)
        found += watch.take()
    await ask(engine, tokens(2000), 1)
    found += watch.take()
    for context in CONTEXTS:
        prefixes = [tokens(context - 16) for _ in range(NUM_PREFIXES)]
        for batch in BATCHES:
            async with trio.open_nursery() as nursery:
                for number in range(batch):
                    nursery.start_soon(ask, engine, prefixes[number % NUM_PREFIXES] + tokens(16), STEPS)
            found += [entry for entry in watch.take() if entry[0].num_sampled == entry[0].num_tokens]
    return found


async def play(engine: Engine, trace: Sequence[Arrival], rng: random.Random) -> Figures:
    """The trace, in real time."""
    prefixes: dict[int, list[int]] = {}
    first_s: list[float] = []
    per_token_s: list[float] = []
    num_tokens = num_cancelled = 0
    before = engine.stats()

    def tokens(arrival: Arrival) -> list[int]:
        def draw(count: int) -> list[int]:
            return rng.choices(range(1000, 40_000), k=count)

        prefix = [] if arrival.prefix is None else prefixes.setdefault(arrival.prefix, draw(arrival.prefix_tokens))
        return prefix + draw(max(1, arrival.prompt_tokens - len(prefix)))

    async def one(arrival: Arrival, prompt: list[int]) -> None:
        nonlocal num_tokens, num_cancelled
        times: list[float] = []
        count = 0
        due_s = start_s + arrival.at
        await trio.sleep_until(due_s)
        leave_s = float("inf") if arrival.cancel_after is None else due_s + arrival.cancel_after
        with trio.move_on_at(leave_s) as scope:
            async with engine.generate(prompt, params(arrival.output_tokens)) as stream:
                async for output in stream:
                    times.append(trio.current_time())
                    count = output.num_output_tokens
        num_cancelled += scope.cancelled_caught
        num_tokens += count
        if times:
            first_s.append(times[0] - due_s)
        if count > 1:
            per_token_s.append((times[-1] - times[0]) / (count - 1))

    prompts = [tokens(arrival) for arrival in trace]
    start_s = trio.current_time() + 0.05
    async with trio.open_nursery() as nursery:
        for arrival, prompt in zip(trace, prompts, strict=True):
            nursery.start_soon(one, arrival, prompt)
    seconds = trio.current_time() - start_s
    after = engine.stats()
    return Figures(
        tokens_per_s=num_tokens / seconds,
        first_token_s=tuple(first_s),
        per_token_s=tuple(per_token_s),
        steps=after.steps - before.steps,
        hit_rate=(after.prefix_hits - before.prefix_hits) / (after.prompt_tokens - before.prompt_tokens),
        cancelled=num_cancelled,
    )


def simulate(parts: EngineParts, limits: SchedulerConfig, cost: MeasuredCost, trace: Sequence[Arrival]) -> Figures:
    """The same with a formula for the device."""
    simulation = Simulation(
        limits,
        cost,
        num_blocks=parts.cache.num_blocks,
        block_size=parts.cache.block_size,
        max_model_len=parts.facts.max_model_len,
    )
    outcome = simulation.run(trace)
    return Figures(
        tokens_per_s=outcome.tokens_per_s,
        first_token_s=outcome.first_token_s,
        per_token_s=outcome.per_token_s,
        steps=outcome.steps,
        hit_rate=outcome.hit_rate,
        cancelled=outcome.num_cancelled,
    )


def report(number: int, real: Figures, simulated: Figures) -> float:
    """Two columns, and the ratio of the throughputs."""
    ratio = simulated.tokens_per_s / real.tokens_per_s
    print(f"round {number:<22} {'real':>10} {'simulated':>10} {'ratio':>7}")
    rows = [("generated tokens/s", real.tokens_per_s, simulated.tokens_per_s)]
    for name, read in (("TTFT", "first_token_s"), ("TPOT", "per_token_s")):
        for percent in (50, 90):
            pair = [statistics.quantiles(getattr(side, read), n=100)[percent - 1] * 1e3 for side in (real, simulated)]
            rows.append((f"{name} p{percent}, ms", *pair))
    rows += [("steps", real.steps, simulated.steps), ("hit rate, %", 100 * real.hit_rate, 100 * simulated.hit_rate)]
    rows.append(("cancelled", real.cancelled, simulated.cancelled))
    for name, one, other in rows:
        print(f"  {name:<26} {one:>10.1f} {other:>10.1f} {other / one if one else float('nan'):>7.2f}")
    sys.stdout.flush()
    return ratio


async def run(arguments: argparse.Namespace) -> list[float]:
    config = EngineConfig(
        model=arguments.model,
        quantization=arguments.quantization,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=1024,
        kv_cache_memory=512 << 20,
    )
    rng = random.Random(arguments.seed)
    ratios: list[float] = []
    everything: Measured = []
    async with open_watched(config) as (engine, parts, watch):
        limits = parts.scheduler.config
        await measure(engine, watch, rng)  # to warm up, and for the kernels to choose their threads
        for number in range(1, arguments.rounds + 1):
            measured = await measure(engine, watch, rng)
            await engine.controls.reset_prefix_cache()
            trace = draw_trace(attrs.evolve(LOAD, num_requests=arguments.requests), arguments.seed + number)
            real = await play(engine, trace, rng)
            await engine.controls.reset_prefix_cache()
            own = watch.take()
            measured += await measure(engine, watch, rng)
            everything += measured
            ratios.append(report(number, real, simulate(parts, limits, fit_cost(measured), trace)))
            hindsight = simulate(parts, limits, fit_cost(own), trace).tokens_per_s / real.tokens_per_s
            print(f"  {'by the steps of the trace itself':<48} {hindsight:>7.2f}")
    if arguments.costs:
        arguments.costs.write_bytes(msgspec.json.encode(fit_cost(everything)))
    if arguments.trace:
        arguments.trace.write_bytes(b"\n".join(map(msgspec.json.encode, trace)))
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=None, help="the built-in one by default")
    parser.add_argument("--quantization", default="none", choices=("none", "int8", "int4"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=LOAD.num_requests)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--costs", type=Path, help="write the measured costs here")
    parser.add_argument("--trace", type=Path, help="write the last trace here")
    ratios = trio.run(run, parser.parse_args())
    median = statistics.median(ratios)
    print(f"simulated / real throughput: {median:.2f} ({min(ratios):.2f}-{max(ratios):.2f}), goal: within {CLOSE:.0%}")
    return int(abs(median - 1) > CLOSE)


if __name__ == "__main__":
    sys.exit(main())
