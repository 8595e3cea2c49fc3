"""What sampling costs: its share of a decode step of 32 sequences of the built-in model, for each kind of request.

    python -m bench.sampling [MODEL] [--clock cpu]

Rows: what every sequence asks for. "step" is the whole step on the device, "sampling" what comes behind the logits;
medians over steps. The goal: at most 10 % with temperature, top_p, top_k and penalties on. On a machine that others use
too, `--clock cpu` says what sampling costs one thread: nothing is shared out, and waiting does not count.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import msgspec
import torch

import triolet.model.runner as runner_module
from triolet.engine.build import RunnerOrder, make_ordered_runner
from triolet.engine.config import EngineConfig
from triolet.engine.core.grammar import GrammarSpec
from triolet.engine.core.ids import RequestId, TokenId
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.request import Request
from triolet.engine.core.scheduler import Scheduler, SchedulerConfig
from triolet.kvcache.manager import KVCacheManager
from triolet.model import row_kernels
from triolet.model.native.library import load_library
from triolet.model.native.sampling import NativeSampler
from triolet.model.source import resolve_source

NUM_SEQUENCES = 32
NUM_PROMPT_TOKENS = 128
NUM_STEPS = 40

SCHEMA = {"type": "array", "items": {"type": "string"}, "minItems": 50}
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "temperature": {"temperature": 0.8},
    "… top_p": {"temperature": 0.8, "top_p": 0.95},
    "high temperature, top_p": {"temperature": 1.5, "top_p": 0.95},
    "… top_k": {"temperature": 0.8, "top_k": 40},
    "… top_p, top_k": {"temperature": 0.8, "top_p": 0.95, "top_k": 40},
    "… top_p, top_k, penalties": {"temperature": 0.8, "top_p": 0.95, "top_k": 40, **PENALTIES},
    "… min_p, top_p, penalties": {"temperature": 0.8, "top_p": 0.95, "min_p": 0.02, **PENALTIES},
    "greedy, penalties": {"temperature": 0, **PENALTIES},
    "greedy, 5 logprobs": {"temperature": 0, "logprobs": 5},
    "greedy, JSON schema": {"temperature": 0, "grammar": GrammarSpec.json_schema(SCHEMA)},
}


class Stopwatch:
    """Stands in for the runner's `draw` and keeps what each call took."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.draw: Any = vars(runner_module)["draw"]
        self.seconds: list[float] = []

    def __call__(self, *args: Any, **fields: Any) -> Any:
        started = self.clock()
        try:
            return self.draw(*args, **fields)
        finally:
            self.seconds.append(self.clock() - started)


def measure(runner: Any, params: SamplingParams, cache: KVCacheManager, watch: Stopwatch) -> tuple[float, float]:
    """Median seconds of a step, and of the sampling in it."""
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=NUM_SEQUENCES, max_num_batched_tokens=8192), cache)
    for number in range(NUM_SEQUENCES):
        prompt = tuple(TokenId((number * 7919 + i * 31) % 40_000 + 100) for i in range(NUM_PROMPT_TOKENS))
        scheduler.submit(Request(id=RequestId(str(number)), prompt_token_ids=prompt, params=params, seed=number))
    steps: list[float] = []
    watch.seconds.clear()
    while (plan := scheduler.plan(0.0)) is not None:
        result = runner.execute(plan)
        if plan.num_tokens == NUM_SEQUENCES:
            steps.append(result.seconds)
        scheduler.commit(result, 0.0)
    for number in range(NUM_SEQUENCES):
        scheduler.abort(RequestId(str(number)))
    runner.reset()
    return statistics.median(steps), statistics.median(watch.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    asked = parser.parse_args()
    by_cpu = asked.clock == "cpu"
    source = resolve_source(asked.model, None)
    config = EngineConfig(max_num_seqs=NUM_SEQUENCES, kv_cache_memory=1 << 30)
    order = RunnerOrder(config=config, kind=source.kind, path=str(source.path), name=source.name)
    runner, loaded = make_ordered_runner(msgspec.msgpack.encode(order), lambda *_: None)
    if by_cpu:
        torch.set_num_threads(1)
        if row_kernels.in_use() is not None:
            row_kernels.use(NativeSampler(load_library(), num_threads=1))
    watch = Stopwatch(time.thread_time if by_cpu else time.perf_counter)
    vars(runner_module)["draw"] = watch
    print(f"{source.name}, {NUM_SEQUENCES} sequences, a vocabulary of {loaded.vocab_size}")
    print(f"{'':<28}{'sampling ms':>13}" + ("" if by_cpu else f"{'step ms':>10}{'share':>8}"))
    for name, fields in KINDS.items():
        cache = KVCacheManager(num_blocks=loaded.size.num_blocks, block_size=loaded.size.block_size)
        params = SamplingParams(max_tokens=NUM_STEPS + 1, ignore_eos=True, **fields)
        step, sampling = measure(runner, params, cache, watch)
        of_step = "" if by_cpu else f"{step * 1e3:>10.2f}{sampling / step:>8.1%}"
        print(f"{name:<28}{sampling * 1e3:>13.2f}{of_step}", flush=True)


if __name__ == "__main__":
    main()
