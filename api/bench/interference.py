"""Interference: what a long prompt does to a stream that is running, and the stream to the prompt.

Imports trio. First a prompt of the length alone; then a stream is started, and when it runs another such prompt is
sent. Measured are the largest gap of the stream while the prompt was read, and the speed of the prompt in both cases.
"""

import random
import statistics
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import attrs
import trio
from rich.console import Console
from rich.table import Table

from .client import Client, Exchange, open_client
from .measure import Outcome, read_outcome
from .prompts import Ask, Maker
from .report import number, ratio_text
from .response import Arrival, MalformedResponse, read_response
from .rounds import ratio
from .target import ServerUnusable, Target

WARM_EVENTS = 16
"""Arrivals of the stream before the prompt is sent."""
AFTER_EVENTS = 4
"""Arrivals of the stream awaited after the prompt's answer: the gap may still be open."""
STREAM_TOKENS = 2000
"""Most tokens of the stream; it is broken off when the prompt has been answered."""


Figures = dict[str, dict[str, Any]]


@attrs.frozen(kw_only=True)
class Interference:
    """One round with one server."""

    largest_gap_s: float
    """Of the stream, from when the prompt was sent until shortly after its answer."""
    usual_gap_s: float
    """The median before the prompt was sent."""
    alone_s: float
    """TTFT of the prompt without a stream."""
    disturbed_s: float
    """TTFT of the prompt beside the stream."""
    prompt_len: int

    @property
    def speed(self) -> float:
        """Of the prompt, disturbed against alone: 1 where the stream costs it nothing."""
        return self.alone_s / self.disturbed_s


async def interfere(
    target: Target, make: Maker, *, prompt_len: int, stream_len: int, seed: int, timeout_s: float
) -> Interference:
    """One round. Raises ServerUnusable when a request fails, or the stream is over too soon."""
    rng = random.Random(f"interference:{seed}")
    first, second = (Ask(content=make(rng, prompt_len), max_tokens=1) for _ in range(2))
    running = Ask(content=make(rng, stream_len), max_tokens=STREAM_TOKENS)
    stream = _Stream(target, running)
    async with open_client() as client:
        alone = _checked(target, await target.send(client, first, timeout_s=timeout_s))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.run, client, timeout_s)
            await stream.wait_arrivals(WARM_EVENTS)
            sent_s = trio.current_time()
            answer = await target.send(client, second, timeout_s=timeout_s)
            answered_s = trio.current_time()
            await stream.wait_arrivals(AFTER_EVENTS)
            nursery.cancel_scope.cancel()
    disturbed = _checked(target, answer)
    try:
        times = stream.times()
    except MalformedResponse as error:
        raise ServerUnusable(f"{target.address.url}: {error}.") from None
    before = [later - earlier for earlier, later in pairwise(times) if later <= sent_s]
    during = [later - earlier for earlier, later in pairwise(times) if later > sent_s]
    if not before or not during or times[-1] < answered_s:
        raise ServerUnusable(f"{target.address.url}: the stream was over before the prompt was answered.")
    return Interference(
        largest_gap_s=max(during),
        usual_gap_s=statistics.median(before),
        alone_s=alone.ttft_s,
        disturbed_s=disturbed.ttft_s,
        prompt_len=prompt_len,
    )


def _checked(target: Target, exchange: Exchange) -> Outcome:
    outcome = read_outcome(exchange)
    if outcome.error is not None:
        raise ServerUnusable(f"{target.address.url}: {outcome.error}.")
    return outcome


class _Stream:
    """The stream that runs meanwhile."""

    def __init__(self, target: Target, ask: Ask) -> None:
        self._target = target
        self._ask = ask
        self._arrivals: list[Arrival] = []
        self._moved = trio.Event()
        self._ended = False

    async def run(self, client: Client, timeout_s: float) -> None:
        await self._target.send(client, self._ask, timeout_s=timeout_s, on_arrival=self._arrived)
        self._ended = True
        self._moved.set()

    def _arrived(self, time_s: float, data: bytes) -> None:
        self._arrivals.append((time_s, data))
        self._moved.set()
        self._moved = trio.Event()

    async def wait_arrivals(self, count: int) -> None:
        """Until so many more have come, or the stream has ended."""
        goal = len(self._arrivals) + count
        while len(self._arrivals) < goal and not self._ended:
            await self._moved.wait()

    def times(self) -> list[float]:
        """When its events came. Raises MalformedResponse."""
        return [time_s for time_s, data in read_response(self._arrivals).events if data != b"[DONE]"]


def report_interference(console: Console, targets: list[Target], rounds: dict[str, list[Interference]]) -> Figures:
    """Print the medians over the rounds, and the ratios of two servers; the same as figures."""
    table = Table("", *(target.name for target in targets), box=None, pad_edge=False, header_style="dim")
    readers: dict[str, Callable[[Interference], float]] = {
        "largest gap of the stream, ms": lambda one: one.largest_gap_s * 1e3,
        "usual gap, ms": lambda one: one.usual_gap_s * 1e3,
        "prompt alone, tok/s": lambda one: one.prompt_len / one.alone_s,
        "prompt beside the stream, tok/s": lambda one: one.prompt_len / one.disturbed_s,
        "speed of the prompt, beside / alone": lambda one: one.speed,
    }
    figures: Figures = {}
    if len(targets) > 1:
        table.add_column("A / B: median (lowest–highest round)")
    for name, read in readers.items():
        values = {target.name: [read(one) for one in rounds[target.name]] for target in targets}
        medians = {server: statistics.median(found) for server, found in values.items()}
        compared = ratio(*values.values()) if len(values) == 2 else None
        digits = 2 if "/" in name and "tok" not in name else 1
        row = [number(medians[target.name], digits) for target in targets]
        table.add_row(name, *row, *([ratio_text(compared)] if len(values) == 2 else []))
        figures[name] = {"medians": medians, "rounds": values, "ratio": compared}
    console.print(table, highlight=False)
    return figures
