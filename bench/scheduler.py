"""What the scheduler costs: microseconds for each running sequence and step, plan and commit together.

    python bench/scheduler.py

Rows: how many decode, and how many wait behind them. The cost of a step must depend neither on the waiting nor on the
size of the pool. The device is a loop that returns a token for each sequence; it is not counted.
"""

import gc
import time

from triolet.engine.core.ids import RequestId, SequenceId, TokenId
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.plan import StepPlan, StepResult
from triolet.engine.core.request import Request
from triolet.engine.core.scheduler import Scheduler, SchedulerConfig
from triolet.kvcache.manager import KVCacheManager

BLOCK_SIZE = 16
NUM_STEPS = 200
NUM_REPEATS = 5


def request(number: int, num_prompt_tokens: int = 64) -> Request:
    prompt = tuple(TokenId((number * 7919 + position) % 50_000) for position in range(num_prompt_tokens))
    params = SamplingParams(max_tokens=4000, ignore_eos=True)
    return Request(id=RequestId(str(number)), prompt_token_ids=prompt, params=params, seed=number)


class Device:
    """Answers each plan with one token for every sequence that samples."""

    def __init__(self) -> None:
        self.sampling: dict[SequenceId, int] = {}  # sequence -> prompt tokens still to compute

    def execute(self, plan: StepPlan) -> StepResult:
        for joined in plan.joined:
            self.sampling[joined.sequence] = len(joined.token_ids) - joined.num_computed
        chunks = dict(zip(plan.chunk_sequences, plan.chunk_lengths, strict=True))
        done = []
        for sequence, remaining in self.sampling.items():
            if remaining:
                left = self.sampling[sequence] = remaining - chunks.get(sequence, 1)
                if left:
                    continue
            done.append(sequence)
        return StepResult(step=plan.step, sequences=tuple(done), token_ids=(TokenId(7),) * len(done))


def microseconds_per_sequence(num_running: int, num_waiting: int, num_blocks: int) -> float:
    cache = KVCacheManager(num_blocks=num_blocks, block_size=BLOCK_SIZE)
    config = SchedulerConfig(max_num_seqs=num_running, max_num_batched_tokens=8192)
    scheduler = Scheduler(config, cache)
    for number in range(num_running + num_waiting):
        scheduler.submit(request(number))
    device = Device()
    while True:  # until everyone decodes
        plan = scheduler.plan(0.0)
        assert plan is not None
        scheduler.commit(device.execute(plan), 0.0)
        scheduler.take_events()
        if plan.num_tokens == num_running == plan.num_sequences:
            break
    best = float("inf")
    for _ in range(NUM_REPEATS):
        spent = 0.0
        for _ in range(NUM_STEPS):
            start = time.perf_counter()
            plan = scheduler.plan(0.0)
            spent += time.perf_counter() - start
            assert plan is not None
            result = device.execute(plan)
            start = time.perf_counter()
            scheduler.commit(result, 0.0)
            scheduler.take_events()
            spent += time.perf_counter() - start
        best = min(best, spent / NUM_STEPS / num_running * 1e6)
    return best


def main() -> None:
    gc.freeze()
    print(
        f"{'running':>8} {'waiting':>8} {'blocks':>8}   µs per sequence and step (best of {NUM_REPEATS} × {NUM_STEPS})"
    )
    for num_running in (32, 256, 1024):
        for num_waiting in (0, 1_000, 100_000):
            num_blocks = num_running * (64 + (NUM_REPEATS + 1) * NUM_STEPS) // BLOCK_SIZE + num_running * 8
            cost = microseconds_per_sequence(num_running, num_waiting, num_blocks)
            print(f"{num_running:>8} {num_waiting:>8} {num_blocks:>8}   {cost:.2f}")
    for num_blocks in (2**15, 2**18):
        print(f"{256:>8} {0:>8} {num_blocks:>8}   {microseconds_per_sequence(256, 0, num_blocks):.2f}")


if __name__ == "__main__":
    main()
