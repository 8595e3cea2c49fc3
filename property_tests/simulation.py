"""The whole engine, all its actors, on a virtual clock: seeded clients come, read, are cancelled, and leave a trace.

Everything is real but the clock, the device (readable memory that takes virtual time for a step) and the tokenizer (a
token is a byte). One seed decides all of it, trio's own order of tasks included, so the same seed gives the same trace,
byte for byte. A trace opens with a legend and has one line per step.
"""

import random
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs
import trio
import trio.testing
from trio._core import _run as trio_run

from tests.engine.simulated import VOCAB_SIZE, ByteTokenizer
from triolet.engine.assembly import EngineParts
from triolet.engine.core.errors import EngineDead, Overloaded, RequestFailed
from triolet.engine.core.events import FinishReason
from triolet.engine.core.ids import TokenId
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.plan import StepPlan, StepResult, choice_seed
from triolet.engine.core.policy import make_policy
from triolet.engine.core.scheduler import Scheduler, SchedulerConfig
from triolet.engine.device import DeviceFailed, DeviceLost
from triolet.engine.engine import Engine, EngineFacts
from triolet.engine.open import run_engine
from triolet.engine.options import RequestOptions
from triolet.kvcache.manager import KVCacheManager

from .admin import change_settings
from .memory import MemoryDevice, alone

LEGEND = (
    "# step: its number | t: virtual seconds | seqs: sequences in the batch | tokens: computed | +joined -left | "
    "w: table entries | c: copies | q: sequences waiting | free: blocks to be had"
)


@attrs.frozen(kw_only=True)
class Scenario:
    """One simulated load. Rates are shares of the requests."""

    seed: int
    num_requests: int = 200
    cancel_rate: float = 0.5
    """Broken off: by a timeout of the client, a `break`, or an exception of its own."""
    arrivals_per_s: float = 1.0
    depth: int = 1
    policy: str = "fcfs"
    num_blocks: int = 48
    block_size: int = 4
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 32
    max_num_queued_reqs: int = 64
    device_fails_at: int | None = None
    """The step at which the device raises, and no longer answers."""
    device_faults: tuple[tuple[int, str], ...] = ()
    """Steps at which the device is "lost", "raises" once, or is out of "memory" once."""
    hasty_rate: float = 0.0
    """Requests that must be admitted within a short time."""
    superseding_rate: float = 0.0
    """Requests that share one of two keys, so that a newer one takes an older one's place."""
    decoder_fails_rate: float = 0.0
    """Requests whose text cannot be decoded."""
    tokenizer_fails_rate: float = 0.0
    """Requests whose prompt cannot be encoded."""
    settings_change: bool = False
    """Somebody changes what can be changed of a running engine."""
    cancel_first_at: int | None = None
    """The first client is cancelled when it runs for the so-maniest time: at that checkpoint of its life."""


@attrs.define
class Tally:
    """What became of the clients."""

    complete: int = 0
    cut_off: int = 0
    refused: int = 0
    timed_out: int = 0
    superseded: int = 0
    failed: int = 0
    dead: int = 0

    @property
    def total(self) -> int:
        return sum(attrs.astuple(self))


@attrs.define
class Outcome:
    trace: str
    tally: Tally
    num_steps: int
    num_preemptions: int
    first_was_cancelled: bool
    """`Scenario.cancel_first_at` came before the first client's end."""


class CancelAt(trio.abc.Instrument):
    """Cancels a scope when its task is about to run for the n-th time: at its n-th checkpoint, wherever that is."""

    def __init__(self, task: trio.lowlevel.Task, scope: trio.CancelScope, n: int) -> None:
        self.fired = False
        self._task = task
        self._scope = scope
        self._left = n

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task and not self.fired:
            self._left -= 1
            if self._left < 0:
                self.fired = True
                self._scope.cancel()


class TracedDevice:
    """Executes plans in order, each after a drawn virtual time, and writes the trace."""

    def __init__(self, scenario: Scenario, draw: random.Random, cache: KVCacheManager) -> None:
        self.lines = [f"# seed {scenario.seed}", LEGEND]
        self.scheduler: Scheduler | None = None
        self._scenario = scenario
        self._draw = draw
        self._cache = cache
        self._sent: deque[tuple[StepPlan, float]] = deque()
        self._faults = dict(scenario.device_faults)
        self._broken = False
        self._memory: MemoryDevice | None = self._new_memory()

    def _new_memory(self) -> MemoryDevice:
        scenario = self._scenario
        return MemoryDevice(
            num_blocks=scenario.num_blocks,
            block_size=scenario.block_size,
            vocab_size=VOCAB_SIZE,
            max_num_seqs=scenario.max_num_seqs,
            max_num_batched_tokens=scenario.max_num_batched_tokens,
        )

    def send(self, plan: StepPlan) -> None:
        if not self._broken:
            begins = max([trio.current_time(), *(ends for _, ends in self._sent)])
            self._sent.append((plan, begins + self._draw.choice((0.0, 0.01, 0.05, 0.2))))
        scheduler = self.scheduler
        assert scheduler is not None
        self.lines.append(
            f"step {plan.step} t={trio.current_time():.3f} seqs={plan.num_sequences} tokens={plan.num_tokens} "
            f"+{len(plan.joined)} -{len(plan.left)} w{len(plan.write_blocks)} c{len(plan.copy_targets)} "
            f"q={scheduler.num_waiting} free={self._cache.num_free_blocks}"
        )

    async def receive(self) -> StepResult:
        await trio.sleep_until(self._sent[0][1])
        plan, _ = self._sent.popleft()
        fault = self._faults.pop(plan.step, None)
        if plan.step == self._scenario.device_fails_at or fault is not None:
            self._broken = True
            self._sent.clear()
            self.lines.append(f"step {plan.step} fails: {fault}")
        if fault == "lost":
            self._memory = None
            raise DeviceLost("planted")
        if self._broken:
            error = MemoryError("planted") if fault == "memory" else OSError("planted")
            raise DeviceFailed.by(error) from error
        assert self._memory is not None
        return self._memory.execute(plan)

    async def restore(self) -> bool:
        await trio.sleep(self._draw.choice((0.0, 0.1, 5.0)))
        if self._scenario.device_fails_at is not None:
            raise DeviceFailed("OSError")
        self._broken = False
        if self._memory is None:
            self._memory = self._new_memory()
            return False
        self._memory.reset()
        return True

    async def watch(self) -> None:
        await trio.sleep_forever()

    def give_up(self) -> None:
        """It never hangs."""


class BrokenDecoder:
    """Raises after a few tokens."""

    def __init__(self) -> None:
        self._left = 3

    def push(self, ids: Sequence[int]) -> str:
        self._left -= len(ids)
        if self._left < 0:
            raise ValueError("planted")
        return ""

    def flush(self) -> str:
        return ""


class FaultyTokenizer(ByteTokenizer):
    """Breaks the decoders of the prompts that begin with byte 255, and at every prompt that is a text."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        raise ValueError("planted")

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return bytes(token_ids).decode("latin-1")

    def incremental(self, prompt_ids: Sequence[int], *, skip_special_tokens: bool = True):  # type: ignore[no-untyped-def]
        return BrokenDecoder() if prompt_ids[0] == 255 else super().incremental(prompt_ids)


class Simulation:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.tally = Tally()
        self.canceller: CancelAt | None = None
        self._draw = random.Random(scenario.seed)
        self.cache = KVCacheManager(num_blocks=scenario.num_blocks, block_size=scenario.block_size)
        self.device = TracedDevice(scenario, random.Random(scenario.seed + 1), self.cache)
        limits = SchedulerConfig(
            max_num_seqs=scenario.max_num_seqs, max_num_batched_tokens=scenario.max_num_batched_tokens
        )
        self.scheduler = Scheduler(limits, self.cache, make_policy(scenario.policy))
        self.device.scheduler = self.scheduler

    @property
    def parts(self) -> EngineParts:
        scenario = self.scenario
        facts = EngineFacts(
            model_name="memory",
            max_model_len=scenario.num_blocks * scenario.block_size,
            vocab_size=VOCAB_SIZE,
            max_num_seqs=scenario.max_num_seqs,
            end_token_ids=(TokenId(0),),
            created=0,
        )
        return EngineParts(
            facts=facts,
            tokenizer=FaultyTokenizer(),
            scheduler=self.scheduler,
            cache=self.cache,
            device=self.device,
            max_num_queued_reqs=scenario.max_num_queued_reqs,
        )

    async def main(self) -> None:
        scenario = self.scenario
        try:
            async with run_engine(self.parts, depth=scenario.depth, check=True) as engine:
                async with trio.open_nursery() as admins:
                    if scenario.settings_change:
                        admins.start_soon(self.administer, engine)
                    async with trio.open_nursery() as clients:
                        for number in range(scenario.num_requests):
                            await trio.sleep(self._draw.expovariate(scenario.arrivals_per_s))
                            clients.start_soon(self.client, engine, number, random.Random(f"{scenario.seed}/{number}"))
                    admins.cancel_scope.cancel()
                await trio.sleep(60)  # the step in flight lands, or the device comes back
                self.check_empty(engine)
        except EngineDead:
            assert scenario.device_fails_at is not None or len(scenario.device_faults) > 3

    async def administer(self, engine: Engine) -> None:
        names = ("max_num_seqs", "max_num_batched_tokens", "max_num_queued_reqs")
        most = {name: getattr(self.scenario, name) for name in names}
        await change_settings(engine, random.Random(self.scenario.seed + 2), **most)

    def check_empty(self, engine: Engine) -> None:
        """K11, and nothing of any request is left."""
        self.scheduler.check()
        stats = engine.stats()
        assert (stats.running, stats.waiting) == (0, 0), "somebody is left"
        assert not self.scheduler.has_unfinished, "a request never got its terminal event"
        assert self.cache.num_free_blocks == self.cache.num_blocks, "blocks are left"

    async def client(self, engine: Engine, number: int, draw: random.Random) -> None:
        """One request, and what its client does with it."""
        broken = draw.random() < self.scenario.decoder_fails_rate
        unreadable = self.scenario.tokenizer_fails_rate > 0 and draw.random() < self.scenario.tokenizer_fails_rate
        prompt = [255 if broken else 1, *(draw.choice((1, 2)) for _ in range(draw.randint(1, 60)))]
        params = SamplingParams(
            n=draw.choice((1, 1, 1, 2)), max_tokens=draw.randint(1, 40), seed=number, ignore_eos=draw.random() < 0.5
        )
        deadline = trio.current_time() + draw.uniform(0, 40) if draw.random() < 0.1 else None
        options = RequestOptions(
            priority=draw.randint(0, 2),
            fairness_key=draw.choice("ab"),
            deadline=deadline,
            max_queue_time_s=draw.uniform(0, 5) if draw.random() < self.scenario.hasty_rate else None,
            supersede_key=draw.choice("kl") if draw.random() < self.scenario.superseding_rate else None,
        )
        cancels = draw.random() < self.scenario.cancel_rate
        patience = draw.choice((0.0, 0.005, 0.5, 3.0, 10.0)) if cancels and draw.random() < 0.7 else float("inf")
        most_reads = draw.randint(0, 10) if cancels and patience == float("inf") else 10**9
        pause = draw.choice((0.0, 0.0, 0.3))
        given: list[list[int]] = [[] for _ in range(params.n)]
        reasons: list[FinishReason | None] = [None] * params.n
        try:
            with trio.move_on_after(patience) as scope:
                if number == 0 and self.scenario.cancel_first_at is not None:
                    task = trio.lowlevel.current_task()
                    self.canceller = CancelAt(task, scope, self.scenario.cancel_first_at)
                    trio.lowlevel.add_instrument(self.canceller)
                async with engine.generate("?" if unreadable else prompt, params, options=options) as stream:
                    while most_reads and None in reasons:
                        output = await anext(stream)
                        given[output.choice] += output.token_ids
                        reasons[output.choice] = output.finish_reason
                        most_reads -= 1
                        await trio.sleep(pause)
        except Overloaded:
            self.tally.refused += 1
        except RequestFailed:
            assert broken or unreadable or self.scenario.device_faults, "only a planted fault fails a request"
            self.tally.failed += 1
        except EngineDead:
            self.tally.dead += 1
        else:
            cut = scope.cancelled_caught or None in reasons
            ended = FinishReason.TIMEOUT in reasons or FinishReason.ABORT in reasons
            self._check(prompt, params, given, reasons, cut=cut or ended)
            if cut:
                self.tally.cut_off += 1
            elif FinishReason.TIMEOUT in reasons:
                assert deadline is not None
                self.tally.timed_out += 1
            elif FinishReason.ABORT in reasons:
                assert options.supersede_key is not None
                self.tally.superseded += 1
            else:
                self.tally.complete += 1

    def _check(
        self,
        prompt: list[int],
        params: SamplingParams,
        given: list[list[int]],
        reasons: list[FinishReason | None],
        *,
        cut: bool,
    ) -> None:
        """S8: the tokens of the request run alone; of one that was cut off, the beginning."""
        assert params.max_tokens is not None
        assert params.seed is not None
        for choice, tokens in enumerate(given):
            expected = alone(
                prompt,
                num_tokens=params.max_tokens,
                end_tokens=frozenset() if params.ignore_eos else frozenset({0}),
                seed=choice_seed(params.seed, choice),
                vocab_size=VOCAB_SIZE,
            )
            whole = reasons[choice] in (FinishReason.STOP, FinishReason.LENGTH)
            assert whole or cut
            assert tokens == (expected if whole else expected[: len(tokens)]), "S8"


@contextmanager
def seeded_trio(seed: int) -> Iterator[None]:
    """Trio shuffles the tasks that are ready; here by the seed. It has no public switch for that."""
    before = trio_run._ALLOW_DETERMINISTIC_SCHEDULING, trio_run._r
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING, trio_run._r = True, random.Random(seed)
    try:
        yield
    finally:
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING, trio_run._r = before


def run(scenario: Scenario) -> Outcome:
    """Run it to its end, on a clock that jumps over every wait."""
    simulation = Simulation(scenario)
    with seeded_trio(scenario.seed):
        trio.run(simulation.main, clock=trio.testing.MockClock(autojump_threshold=0))
    if scenario.device_fails_at is None and not simulation.tally.dead:
        assert simulation.tally.total == scenario.num_requests, "S7: a client heard nothing"
    return Outcome(
        trace="\n".join(simulation.device.lines) + "\n",
        tally=simulation.tally,
        num_steps=sum("fails" not in line for line in simulation.device.lines[2:]),
        num_preemptions=simulation.scheduler.stats.num_preemptions,
        first_was_cancelled=simulation.canceller is not None and simulation.canceller.fired,
    )
