"""A stage for the contract's tests: the real server and the real engine, around a device whose steps the test releases.

A state is reached by stepping to it and looking at the plans; nothing depends on how fast anything is.
"""

import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import attrs
import trio
import trio.testing

from property_tests.memory import MemoryDevice
from tests.engine.simulated import ByteDecoder, ByteTokenizer, EchoMemory, SimulatedDevice, Simulation, simulate
from triolet.api.config import ServerConfig
from triolet.api.serve import Run, serve
from triolet.engine.config import EngineConfig
from triolet.engine.core.grammar import GrammarSpec
from triolet.engine.core.plan import StepPlan, StepResult
from triolet.engine.engine import Engine
from triolet.engine.open import run_engine

ROUNDS_MAX = 60_000
"""How often a condition is looked at before the test fails: a minute where nothing happens, but a process or a thread
may be what is waited for, and the machine slow."""


async def until(condition: Callable[[], Any], rounds: int = ROUNDS_MAX) -> None:
    """Return once it holds and every task waits."""
    for _ in range(rounds):
        await trio.testing.wait_all_tasks_blocked(0.001)
        if condition():
            return
    raise AssertionError("it never came to that")


class SteppedDevice:
    """Takes a plan at once, and answers when the test lets it."""

    def __init__(self, simulated: SimulatedDevice) -> None:
        self._simulated = simulated
        self.num_steps_released: float = 0
        self.num_steps = 0
        self._released = trio.Event()

    def step(self, count: float = 1) -> None:
        """Release so many steps, those to come included; infinity lets it run."""
        self.num_steps_released += count
        self._released.set()
        self._released = trio.Event()

    @property
    def plans(self) -> list[StepPlan]:
        return self._simulated.plans

    @property
    def waits(self) -> bool:
        """A step is in flight that has not been released."""
        return len(self.plans) > self.num_steps and self.num_steps >= self.num_steps_released

    async def receive(self) -> StepResult:
        while self.num_steps >= self.num_steps_released:
            await self._released.wait()
        self.num_steps += 1
        return await self._simulated.receive()

    def __getattr__(self, name: str) -> Any:
        """In everything else it is the simulated one."""
        return getattr(self._simulated, name)


class LoudDecoder(ByteDecoder):
    """A token is a page of text: a few of them fill every buffer on the way to a client."""

    def push(self, ids: Any) -> str:
        return super().push(ids) * 200_000


class StageTokenizer(ByteTokenizer):
    """Can be held while it works on a long prompt, in its worker thread; and can be loud. Its template knows tools."""

    chat_templates: Mapping[str, str] = {"default": "{{ tools }}<tool_call>"}

    def __init__(self) -> None:
        self.loud = False
        self.held = False
        self.num_encoded = 0
        self.started = trio.Event()
        self.may_end = trio.Event()
        self._token = trio.lowlevel.current_trio_token()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.num_encoded += 1
        if self.held:
            with suppress(trio.RunFinishedError):
                trio.from_thread.run_sync(self.started.set, trio_token=self._token)
                trio.from_thread.run(self.may_end.wait, trio_token=self._token)
        return super().encode(text, add_special_tokens=add_special_tokens)

    def incremental(self, prompt_ids: Any, *, skip_special_tokens: bool = True) -> ByteDecoder:
        return LoudDecoder() if self.loud else ByteDecoder()


class StageCompiler:
    """Compiles grammars at once; held, it waits in its thread."""

    def __init__(self) -> None:
        self.held = False
        self.started = trio.Event()
        self.may_end = threading.Event()
        self.num_at_work = 0
        self.num_compiled = 0
        self._token = trio.lowlevel.current_trio_token()

    def has(self, spec: GrammarSpec) -> bool:
        return False

    def prepare(self) -> None:
        pass

    def compile(self, spec: GrammarSpec) -> None:
        self.num_at_work += 1
        if self.held:
            self._token.run_sync_soon(self.started.set)
            self.may_end.wait()
        self.num_at_work -= 1
        self.num_compiled += 1


@attrs.frozen
class Held:
    """What a server holds of the machine."""

    num_tasks: int
    num_descriptors: int

    def no_more_than(self, other: "Held") -> bool:
        """Fewer may be: what another test left lying about is collected at any time."""
        return self.num_tasks <= other.num_tasks and self.num_descriptors <= other.num_descriptors


def held_now() -> Held:
    return Held(trio.lowlevel.current_statistics().tasks_living, len(os.listdir("/proc/self/fd")))


@attrs.define(kw_only=True)
class Stage:
    """A running server, what it is made of, and what it held when it was idle."""

    run: Run
    engine: Engine
    simulation: Simulation
    device: SteppedDevice
    tokenizer: StageTokenizer
    compiler: StageCompiler
    idle: Held = attrs.field(factory=held_now)
    others: list[Any] = attrs.field(factory=list)
    """Clients that stay."""
    status: list[int]
    ended: trio.Event

    @property
    def port(self) -> int:
        return self.run.server.port

    @property
    def num_open(self) -> int:
        return len(self.run.lifecycle.open_requests)

    @property
    def wasted_tokens(self) -> int:
        return self.simulation.parts.scheduler.stats.wasted_tokens

    @property
    def num_plans(self) -> int:
        return len(self.device.plans)

    async def step(self, count: int = 1) -> None:
        """Let so many steps land, and everything settle that follows from them."""
        for _ in range(count):
            num_steps = self.device.num_steps
            self.device.step()
            await until(lambda num_steps=num_steps: self.device.num_steps > num_steps)
        await until(lambda: True)

    def engine_is_empty(self) -> bool:
        """No sequence, no request, and every block is back."""
        stats = self.engine.stats()
        return not stats.running and not stats.waiting and self.simulation.all_blocks_are_back

    async def wait_all_gone(self) -> None:
        """Until nobody is connected, and tasks, descriptors and blocks are where they were."""
        self.tokenizer.may_end.set()
        self.compiler.may_end.set()
        await until(lambda: not self.num_open and not self.run.server.num_connections and self.engine_is_empty())
        await until(lambda: held_now().no_more_than(self.idle))


@asynccontextmanager
async def staged(
    *,
    max_num_seqs: int = 4,
    num_blocks: int = 256,
    max_model_len: int = 256,
    max_num_batched_tokens: int = 16,
    max_num_queued_reqs: int = 16,
    max_num_queued_tokens: int = 0,
    num_kept_requests: int = 256,
    fail_at: int | None = None,
    step_freely: bool = False,
    step_s: float = 0.0,
    runner: type[MemoryDevice] = EchoMemory,
    check: bool = True,
    signals: bool = False,
    **config: Any,
) -> AsyncIterator[Stage]:
    """A server on a free port; stopped at the end, at once."""
    tokenizer, compiler, ended = StageTokenizer(), StageCompiler(), trio.Event()
    simulation = simulate(
        max_num_seqs=max_num_seqs,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_queued_reqs=max_num_queued_reqs,
        step_s=step_s,
        fail_at=fail_at,
        runner=runner,
        tokenizer=tokenizer,
        grammars=compiler,
    )
    device = SteppedDevice(simulation.device)
    if step_freely:
        device.step(float("inf"))
    parts = attrs.evolve(simulation.parts, device=device, num_kept_requests=num_kept_requests)
    parts = attrs.evolve(parts, max_num_queued_tokens=max_num_queued_tokens)
    engines: list[Engine] = []
    status: list[int] = []

    @asynccontextmanager
    async def open_engine(_: EngineConfig, *, observer: Any = None, progress: Any = None) -> AsyncIterator[Engine]:
        async with run_engine(parts, observer=observer, check=check) as engine:
            engines.append(engine)
            yield engine

    async def run_server(*, task_status: trio.TaskStatus[Run]) -> None:
        settings = ServerConfig(**{"port": 0, "shutdown_timeout": 0.0, **config})
        how: dict[str, Any] = {"open_engine": open_engine, "version": "9.9", "signals": signals}
        status.append(await serve(EngineConfig(), settings, task_status=task_status, **how))
        ended.set()

    async with trio.open_nursery() as nursery:
        run: Run = await nursery.start(run_server)
        await until(lambda: True)
        try:
            yield Stage(
                run=run,
                engine=engines[0],
                simulation=simulation,
                device=device,
                tokenizer=tokenizer,
                compiler=compiler,
                status=status,
                ended=ended,
            )
        finally:
            tokenizer.may_end.set()
            compiler.may_end.set()
        device.step(float("inf"))
        run.stop.set()
