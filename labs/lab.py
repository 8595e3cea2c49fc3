"""What the labs share: an engine whose steps are seen, a narrative, and claims that are checked.

A lab prints what it does and what came of it. Whatever it claims about counts and texts is checked: a claim that does
not hold is marked, and the script then ends with status 1. Times are shown and never claimed: they are the machine's.
"""

import textwrap
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from triolet.engine.build import build, make_device
from triolet.engine.config import EngineConfig
from triolet.engine.core.logprobs import TokenLogprobs
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.plan import StepPlan, StepResult
from triolet.engine.cost import MirroredBatch, StepPart
from triolet.engine.device import Device
from triolet.engine.engine import Engine
from triolet.engine.observer import NoObserver, StepSeen
from triolet.engine.open import run_engine
from triolet.engine.story import Story
from triolet.engine.stream import Output

WIDTH = 100
BLOCK_SIZE = 16
SETTINGS = {"kv_cache_memory": 192 << 20, "block_size": BLOCK_SIZE, "max_model_len": 2048, "dtype": "float32"}
"""Float32, because labs compare answers token by token, and fewer bits let two correct programs differ."""


class Lab:
    """The narrative of one lab."""

    def __init__(self) -> None:
        self.num_failed = 0

    def say(self, text: str) -> None:
        """A paragraph."""
        print(textwrap.fill(" ".join(text.split()), WIDTH), end="\n\n")

    def quote(self, heading: str, text: str) -> None:
        """Something that the engine has written, under a heading."""
        print(f"{heading}:", textwrap.indent(textwrap.fill(text, WIDTH), "    "), sep="\n", end="\n\n")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Columns, aligned to the right but for the first."""
        lines = [list(map(str, header)), *(list(map(str, row)) for row in rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
        for line in lines:
            cells = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
            print("  " + "  ".join([line[0].ljust(widths[0]), *cells]).rstrip())
        print()

    def claim(self, what: str, holds: bool) -> None:
        """Something that must be so; the script's exit status says whether it was."""
        self.num_failed += not holds
        print(f"  {'ok   ' if holds else 'FALSE'}  {what}")

    def end_claims(self) -> None:
        """An empty line after a group of claims."""
        print()


def run(title: str, story: Callable[[Lab], Awaitable[None]]) -> int:
    """Tell a lab's story; the exit status."""
    lab = Lab()
    print(f"\n{title}\n{'=' * len(title)}\n")
    trio.run(story, lab)
    print(f"{lab.num_failed} claims did not hold." if lab.num_failed else "Everything claimed was so.")
    return int(lab.num_failed > 0)


@attrs.frozen
class SeenStep:
    """A step that was planned: who computed what in it, by the names that `Watch.call` gave."""

    plan: StepPlan
    parts: tuple[tuple[str, StepPart], ...]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of prompts; decodes compute one each."""
        return sum(part.num_tokens for _, part in self.parts if part.num_tokens > 1)

    def part_of(self, name: str) -> StepPart | None:
        return next((part for called, part in self.parts if called == name), None)


class Watch(NoObserver):
    """Stands between the scheduler loop and the device, sees every plan, and hears how long each step took and which
    requests are over."""

    def __init__(self, device: Device) -> None:
        self.steps: list[SeenStep] = []
        self.times: list[StepSeen] = []
        """Of the steps that have landed."""
        self.num_ended = 0
        """Requests that are over. An end is told later than the scheduler knows it, by another actor."""
        self.give_up, self.watch = device.give_up, device.watch
        self._device = device
        self._batch = MirroredBatch()
        self._prompts: dict[tuple[int, ...], str] = {}
        self._names: dict[int, str] = {}
        self._num_steps_of: Counter[str] = Counter()
        self._moved = trio.Event()

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Return once it is so; it is asked after each plan and each end of a request."""
        while not is_so():
            await self._moved.wait()

    def num_steps_of(self, name: str) -> int:
        """In how many steps somebody has been so far."""
        return self._num_steps_of[name]

    def call(self, name: str, prompt_token_ids: Sequence[int]) -> None:
        """Sequences that begin with this prompt are called so from now on."""
        self._prompts[tuple(prompt_token_ids)] = name

    def send(self, plan: StepPlan) -> None:
        for joined in plan.joined:
            prompt = joined.token_ids[: joined.num_prompt_tokens]
            self._names[joined.sequence] = self._prompts.get(prompt, "?")
        parts = tuple((self._names[part.sequence], part) for part in self._batch.apply(plan))
        self.steps.append(SeenStep(plan, parts))
        self._num_steps_of.update(name for name, _ in parts)
        self._wake()
        self._device.send(plan)

    async def receive(self) -> StepResult:
        return await self._device.receive()

    async def restore(self) -> bool:
        self._batch.forget()
        return await self._device.restore()

    def step(self, seen: StepSeen) -> None:
        self.times.append(seen)

    def ended(self, story: Story) -> None:
        self.num_ended += 1
        self._wake()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = trio.Event()


@asynccontextmanager
async def open_watched(**settings: object) -> AsyncIterator[tuple[Engine, Watch]]:
    """The built-in model in an engine with these settings of `EngineConfig`, and what is to be seen of it.

    This is `open_engine` with the watch in front of the device. Raises ConfigurationError, in a group.
    """
    config = EngineConfig(**{**SETTINGS, **settings})  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        device = make_device(config)
        nursery.start_soon(device.run)
        try:
            parts = await build(config, device)
            watch = Watch(parts.device)
            parts = attrs.evolve(parts, device=watch)
            async with run_engine(parts, observer=watch, check=True) as engine:
                yield engine, watch
        finally:
            device.close()


def greedy(max_tokens: int) -> SamplingParams:
    """The likeliest token each time, and exactly so many."""
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


@attrs.frozen
class Answer:
    """All of an answer."""

    token_ids: tuple[int, ...]
    text: str
    num_cached_tokens: int
    seconds_to_first_token: float
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Where they were asked for."""


async def ask(
    engine: Engine,
    prompt: str | Sequence[int],
    params: SamplingParams,
    on_output: Callable[[Output], None] = lambda output: None,
) -> Answer:
    """One request, from its beginning to its end; `on_output` sees each piece of the answer as it comes."""
    asked, first, outputs = trio.current_time(), 0.0, []
    async with engine.generate(prompt, params) as stream:
        async for output in stream:
            first = first or trio.current_time() - asked
            outputs.append(output)
            on_output(output)
    return Answer(
        tuple(token for output in outputs for token in output.token_ids),
        "".join(output.text for output in outputs),
        outputs[-1].num_cached_tokens,
        first,
        tuple(logprobs for output in outputs for logprobs in output.logprobs),
    )


async def ask_all(engine: Engine, prompts: Sequence[str | Sequence[int]], params: SamplingParams) -> list[Answer]:
    """All at once; the answers in the order of the prompts."""
    answers: dict[int, Answer] = {}

    async def one(index: int) -> None:
        answers[index] = await ask(engine, prompts[index], params)

    async with trio.open_nursery() as nursery:
        for index in range(len(prompts)):
            nursery.start_soon(one, index)
    return [answers[index] for index in range(len(prompts))]


def prompt(number: int, length: int) -> tuple[int, ...]:
    """So many ordinary token ids; another number, another prompt from the first token on."""
    return tuple(
        1000 + (7919 * (number + 1) + 104_729 * position * (number + 3)) % 40_000 for position in range(length)
    )
