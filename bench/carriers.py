"""What it costs to run the model in a process of its own instead of a thread: the time of a step, in turns.

    python -m bench.carriers [--model MODEL] [--streams 1,32] [--tokens 100] [--rounds 3] [--read]

Both engines are loaded once and asked in turns, so that a busy machine is as busy for the one as for the other. A step
is timed from outside: all streams decode, the wall time is divided by the steps. `--read` adds a reader that turns each
token into bytes, as a server does, and so contends for the interpreter's lock.
"""

import argparse
import json
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal

import trio

from triolet import EngineConfig, SamplingParams, open_engine
from triolet.engine.engine import Engine

CARRIERS: tuple[Literal["thread", "process"], ...] = ("thread", "process")


async def step_ms(engine: Engine, num_streams: int, num_tokens: int, *, read: bool) -> float:
    """Milliseconds per step while `num_streams` requests decode `num_tokens` tokens each."""
    params = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True)

    async def ask(number: int) -> None:
        async with engine.generate(f"Stream {number} tells a story about", params) as stream:
            async for output in stream:
                if read:
                    json.dumps({"choices": [{"text": output.text, "index": 0, "finish_reason": None}]}).encode()

    steps, started = engine.stats().steps, time.perf_counter()
    async with trio.open_nursery() as nursery:
        for number in range(num_streams):
            nursery.start_soon(ask, number)
    return 1000 * (time.perf_counter() - started) / (engine.stats().steps - steps)


@asynccontextmanager
async def engines(model: str | None) -> AsyncIterator[dict[str, Engine]]:
    async with AsyncExitStack() as stack:
        yield {
            carrier: await stack.enter_async_context(
                open_engine(EngineConfig(model=model, runner=carrier, kv_cache_memory=1 << 28))
            )
            for carrier in CARRIERS
        }


async def main(arguments: argparse.Namespace) -> None:
    async with engines(arguments.model) as both:
        for num_streams in map(int, arguments.streams.split(",")):
            times: dict[str, list[float]] = {carrier: [] for carrier in CARRIERS}
            for round_number in range(arguments.rounds + 1):
                for carrier, engine in both.items():
                    took = await step_ms(engine, num_streams, arguments.tokens, read=arguments.read)
                    if round_number:  # the first is for warming up
                        times[carrier].append(took)
            thread, process = (statistics.median(times[carrier]) for carrier in CARRIERS)
            print(
                f"{num_streams:4} streams: thread {thread:.2f} ms a step, process {process:.2f} ms, "
                f"process / thread {process / thread:.2f}"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--streams", default="1,32")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--read", action="store_true")
    trio.run(main, parser.parse_args())
