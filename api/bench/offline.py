"""`triolet bench throughput` and `latency`: the engine itself, without HTTP.

Imports trio and the engine's front door.
"""

import random
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import trio
from rich.table import Table

from ...engine.config import EngineConfig
from ...engine.core.params import SamplingParams
from ...engine.open import open_engine
from ...engine.progress import loading_bars
from ...engine.prompt import TokenPrompt
from .measure import spread
from .options import BatchOptions, OutputOptions, ThroughputOptions
from .prompts import TokenMaker
from .report import console_for, number, write_figures

if TYPE_CHECKING:
    from ...engine.engine import Engine
    from ...engine.stream import Output


@attrs.frozen(kw_only=True)
class Run:
    """A number of requests that were in the engine together."""

    duration_s: float
    ttft_s: tuple[float, ...]
    num_prompt_tokens: int
    num_output_tokens: int


async def run_batch(engine: "Engine", prompts: Sequence[TokenPrompt], output_len: int, *, at_once: int) -> Run:
    """All prompts answered at full length, `at_once` of them in the engine. Raises the engine's errors, one of them."""
    params = SamplingParams(max_tokens=output_len, temperature=0.0, ignore_eos=True)
    room = trio.CapacityLimiter(at_once)
    ttft: list[float] = []
    num_output_tokens = 0

    async def answer(index: int, prompt: TokenPrompt) -> None:
        nonlocal num_output_tokens
        async with room:
            sent_s = trio.current_time()
            last: Output | None = None
            async with engine.generate(prompt, params, request_id=f"bench-{index}") as stream:
                async for output in stream:
                    if last is None:
                        ttft.append(trio.current_time() - sent_s)
                    last = output
            num_output_tokens += last.num_output_tokens if last is not None else 0

    start_s = trio.current_time()
    try:
        async with trio.open_nursery() as nursery:
            for index, prompt in enumerate(prompts):
                nursery.start_soon(answer, index, prompt)
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    return Run(
        duration_s=trio.current_time() - start_s,
        ttft_s=tuple(ttft),
        num_prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts),
        num_output_tokens=num_output_tokens,
    )


def draw(engine: "Engine", rng: random.Random, *, count: int, length: int, prefix_len: int = 0) -> list[TokenPrompt]:
    """Prompts of random tokens, behind a beginning that they share."""
    make = TokenMaker(engine.tokenizer.vocab_size)
    prefix = make(rng, prefix_len)
    return [TokenPrompt(token_ids=prefix + make(rng, length)) for _ in range(count)]


async def throughput(
    config: EngineConfig, options: ThroughputOptions, report: OutputOptions, *, opening: Any = open_engine
) -> int:
    """Many requests, as fast as they go."""
    async with _opened(config, opening) as engine:
        rng = random.Random(config.seed)
        await run_batch(engine, draw(engine, rng, count=1, length=options.input_len), 2, at_once=1)
        prompts = draw(engine, rng, count=options.num_requests, length=options.input_len, prefix_len=options.prefix_len)
        run = await run_batch(engine, prompts, options.output_len, at_once=config.max_num_queued_reqs)
    figures = {
        "duration_s": run.duration_s,
        "requests_per_s": len(prompts) / run.duration_s,
        "output_tokens_per_s": run.num_output_tokens / run.duration_s,
        "total_tokens_per_s": (run.num_prompt_tokens + run.num_output_tokens) / run.duration_s,
    }
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("model", engine.model_name)
    table.add_row("requests", f"{len(prompts)} of {options.input_len} / {options.output_len} tokens")
    table.add_row("duration", f"{run.duration_s:.2f} s")
    table.add_row("output tok/s", number(figures["output_tokens_per_s"]))
    table.add_row("total tok/s", number(figures["total_tokens_per_s"]))
    table.add_row("requests/s", number(figures["requests_per_s"], 2))
    console_for(report).print(table, highlight=False)
    settings = {**attrs.asdict(options), **attrs.asdict(config)}
    write_figures(
        report,
        {"command": "throughput", "model": engine.model_name, "settings": settings, "figures": figures},
    )
    return 0


async def latency(
    config: EngineConfig, options: BatchOptions, report: OutputOptions, *, opening: Any = open_engine
) -> int:
    """One batch after the other, each begun when the one before has ended."""
    runs: list[Run] = []
    async with _opened(config, opening) as engine:
        rng = random.Random(config.seed)
        for iteration in range(options.warmup + options.iterations):
            prompts = draw(engine, rng, count=options.batch_size, length=options.input_len)
            run = await run_batch(engine, prompts, options.output_len, at_once=options.batch_size)
            if iteration >= options.warmup:
                runs.append(run)
    batches = spread(run.duration_s for run in runs)
    firsts = spread(first for run in runs for first in run.ttft_s)
    steps = spread(
        (run.duration_s - max(run.ttft_s)) / (options.output_len - 1) for run in runs if options.output_len > 1
    )
    console = console_for(report)
    sizes = f"batch of {options.batch_size}, {options.input_len} / {options.output_len} tokens"
    console.print(f"{engine.model_name}: {sizes}, {len(runs)} times", highlight=False)
    table = Table("ms", "p50", "p90", "p99", "max", box=None, pad_edge=False, header_style="dim")
    for name, found in (("batch", batches), ("first token", firsts), ("each token after", steps)):
        table.add_row(name, *(number(value) for value in (found.p50, found.p90, found.p99, found.max)))
    console.print(table, highlight=False)
    rate = options.batch_size * options.output_len / statistics.median(run.duration_s for run in runs)
    console.print(f"output tok/s {number(rate)} (of the median batch)", highlight=False)
    figures = {"batch_ms": batches, "ttft_ms": firsts, "tpot_ms": steps, "output_tokens_per_s": rate}
    settings = {**attrs.asdict(options), **attrs.asdict(config)}
    write_figures(report, {"command": "latency", "model": engine.model_name, "settings": settings, "figures": figures})
    return 0


@asynccontextmanager
async def _opened(config: EngineConfig, opening: Any) -> AsyncIterator["Engine"]:
    """The engine; its loading is shown, and the bars are gone before anything is measured."""
    with ExitStack() as bars:
        async with opening(
            attrs.evolve(config, max_num_queued_tokens=0), progress=bars.enter_context(loading_bars())
        ) as engine:
            bars.close()
            yield engine
