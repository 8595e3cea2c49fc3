"""A device thread that can be watched and held, an engine that says who has left it, and what else may be left behind.

A watched request carries its number in the first two tokens of its prompt, so that it can be told apart in a plan.
"""

import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from triolet.engine.config import EngineConfig
from triolet.engine.core.ids import SequenceId
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.plan import StepPlan, StepResult
from triolet.engine.device import ThreadDevice
from triolet.engine.engine import Engine
from triolet.engine.open import open_engine
from triolet.engine.prompt import TokenPrompt
from triolet.engine.stream import RequestStream

_BASE, _FIRST = 200, 3


def numbered(number: int, tokens: Sequence[int]) -> list[int]:
    """A prompt that tells its number."""
    return [_FIRST + number // _BASE, _FIRST + number % _BASE, *tokens]


def number_of(tokens: Sequence[int]) -> int:
    return (tokens[0] - _FIRST) * _BASE + tokens[1] - _FIRST


class WatchedDevice(ThreadDevice):
    """The real device. It knows which requests each plan computes, and that a plan names nobody who has left."""

    def __init__(self) -> None:
        super().__init__()
        self.num_steps = 0
        self.entered: set[int] = set()
        """Requests that the engine has heard of."""
        self.left: set[int] = set()
        """Requests whose scope has been left."""
        self.stages: Counter[str] = Counter()
        """Where those were when they left."""
        self.late: list[tuple[int, int]] = []
        """(step, request) for each plan made after a request had left that still computes it."""
        self._running: dict[SequenceId, int] = {}
        self._prompts_left: dict[int, int] = {}
        self._changed = trio.Event()
        self._may_land = trio.Event()
        self._may_land.set()
        self._is_held = False

    @property
    def running(self) -> set[int]:
        """Requests in the batch of the last plan."""
        return set(self._running.values())

    async def hold(self) -> None:
        """The step in flight, or else the next, does not land. Returns once it is held: none is planned after it."""
        if self._may_land.is_set():
            self._may_land = trio.Event()
        await self.wait_until(lambda: self._is_held)

    def let_go(self) -> None:
        self._may_land.set()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """It is looked at after each plan and whenever a request leaves."""
        while not condition():
            await self._changed.wait()

    def send(self, plan: StepPlan) -> None:
        self.num_steps = plan.step
        for sequence in plan.left:
            del self._running[sequence]
        for joined in plan.joined:
            number = self._running[joined.sequence] = number_of(joined.token_ids)
            self._prompts_left[number] = joined.num_prompt_tokens - joined.num_computed
        chunks = dict(zip(plan.chunk_sequences, plan.chunk_lengths, strict=True))
        for sequence, number in self._running.items():
            self._prompts_left[number] -= chunks.get(sequence, 1)
        self.late += [(plan.step, number) for number in sorted(self.running & self.left)]
        super().send(plan)
        self._wake()

    async def receive(self) -> StepResult:
        result = await super().receive()
        while not self._may_land.is_set():
            self._is_held = True
            self._wake()
            await self._may_land.wait()
        self._is_held = False
        return result

    def enter(self, number: int) -> None:
        """The scope of a request is being entered."""
        self.entered.add(number)
        self._wake()

    def leave(self, number: int) -> None:
        """The scope of a request has been left."""
        self.left.add(number)
        if number not in self.running:
            self.stages["not running"] += 1
        else:
            self.stages["prefill" if self._prompts_left[number] > 0 else "decode"] += 1
        self._wake()

    def forget(self) -> None:
        """Those who were here before may come again."""
        self.entered.clear()
        self.left.clear()
        self.stages.clear()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    @asynccontextmanager
    async def open_engine(self, config: EngineConfig, **how: Any) -> AsyncIterator[Engine]:
        """The engine's scope, told of every request that leaves; the device must be its own (see `watch`)."""
        async with open_engine(config, **how) as engine:
            generate = engine.generate

            @asynccontextmanager
            async def watched(prompt: TokenPrompt, params: SamplingParams, **more: Any) -> AsyncIterator[RequestStream]:
                self.enter(number_of(prompt.token_ids))
                try:
                    async with generate(prompt, params, **more) as stream:
                        yield stream
                finally:
                    self.leave(number_of(prompt.token_ids))

            engine.generate = watched  # type: ignore[method-assign, assignment]
            yield engine


def task_names() -> Counter[str]:
    """Every task of this trio run, by name."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    names: Counter[str] = Counter()
    waiting = [root]
    while waiting:
        task = waiting.pop()
        names[task.name] += 1
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return names


def num_open_files() -> int:
    """File descriptors of this process, sockets included."""
    return len(os.listdir("/dev/fd"))
