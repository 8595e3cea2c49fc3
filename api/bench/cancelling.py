"""What a server does for a client that has left: the tokens it still makes, and when its slot serves somebody else.

Imports trio through the client. A trial is one stream that is read for a while and then left by closing its connection.

- **Tokens, counted**: where the server has a counter of generated tokens in /metrics, its growth over the trial until
  it stands still, less the events that were read before leaving. Tokens that were on their way at that moment count as
  made afterwards, so a server that stops at once shows some few. Tokens that a server drops uncounted aren't seen;
  where it counts those that it made in vain, they are added (Triolet: also where they are among the others already).
- **The slot**: as many streams as the server runs at a time are open, a short request waits behind them, and one
  stream is left: the time until the short request has its first byte, and how long it takes on an idle server.
- **Tokens, probed**: where there is no counter, the difference of those times, at the stream's own rate.
"""

import random
import re
import statistics
from collections.abc import Sequence
from typing import Any

import attrs
import trio
from rich.console import Console
from rich.table import Table

from ...engine.core.errors import StartError
from ..errors import leaf_error
from .client import Client, open_client
from .options import CancelOptions, LengthOptions, OutputOptions, ServerOptions
from .prompts import Ask, Maker
from .report import console_for, number, write_figures
from .target import ServerUnusable, Target, get

COUNTERS = re.compile(
    r"^(?:\w+:generation_tokens_total|llamacpp:tokens_predicted_total|tgi_request_generated_tokens_sum"
    r"|triolet:wasted_tokens_total)(?:\{[^}]*\})?\s+(\S+)",
    re.MULTILINE,
)
POLL_S = 0.05
GRACE_S = 0.2
"""A short request is given so long to join the server's queue before a stream is left."""


@attrs.frozen(kw_only=True)
class Trial:
    """What one leaving came to."""

    tokens_counted: float | None
    """None: the server has no counter, or it went on past the timeout."""
    slot_s: float
    """From the leaving to the first byte of the request that waited."""
    idle_s: float
    """The same request alone."""
    tokens_per_s: float
    """Of the stream, while it was read."""

    @property
    def tokens_probed(self) -> float:
        return max(0.0, self.slot_s - self.idle_s) * self.tokens_per_s


class _Stream:
    """A stream that can be left."""

    def __init__(self, target: Target, ask: Ask) -> None:
        self._target = target
        self._ask = ask
        self._scope = trio.CancelScope()
        self._times: list[float] = []
        self._enough = 0
        self._has_enough = trio.Event()
        self.num_events = 0
        self.over = False

    async def run(self, client: Client, timeout_s: float) -> None:
        with self._scope:
            exchange = await self._target.send(client, self._ask, timeout_s=timeout_s, on_arrival=self._note)
            self.over = True
            self._has_enough.set()
            if exchange.error is not None:
                raise ServerUnusable(f"{self._target.address.url} cannot be measured: {exchange.error}.")

    def _note(self, now: float, data: bytes) -> None:
        count = data.count(b"data: {")
        self.num_events += count
        if count:
            self._times.append(now)
        if self.num_events >= self._enough:
            self._has_enough.set()

    async def read(self, num_events: int) -> None:
        """Until so many events have come. Raises ServerUnusable when the stream is over before."""
        self._enough = num_events
        if self.num_events < num_events:
            await self._has_enough.wait()
        if self.over:
            raise ServerUnusable(
                f"{self._target.address.url}: a stream was over before it could be left; raise --output-len."
            )

    def leave(self) -> float:
        """Close the connection, at once. The moment of it."""
        self._scope.cancel()
        return trio.current_time()

    @property
    def tokens_per_s(self) -> float:
        if len(self._times) < 2 or self._times[-1] == self._times[0]:
            return 0.0
        return (self.num_events - 1) / (self._times[-1] - self._times[0])


async def read_counter(target: Target) -> float | None:
    """Tokens that the server has generated, wasted ones included; None: it does not say."""
    response = await get(target.address, "/metrics")
    found = COUNTERS.findall(response.body.decode(errors="replace")) if response.status == 200 else []
    return sum(map(float, found)) if found else None


async def _until_quiet(target: Target, quiet_s: float, timeout_s: float) -> float | None:
    """The counter, once it has stood still for so long."""
    last, last_s = await read_counter(target), trio.current_time()
    with trio.move_on_after(timeout_s):
        while trio.current_time() - last_s < quiet_s:
            await trio.sleep(POLL_S)
            counter = await read_counter(target)
            if counter != last:
                last, last_s = counter, trio.current_time()
        return last
    return None


async def _count(target: Target, ask: Ask, options: CancelOptions, timeout_s: float) -> tuple[float | None, float]:
    """Tokens made for a stream after it was left, and the rate that it had."""
    before = await _until_quiet(target, options.quiet, timeout_s) if await read_counter(target) is not None else None
    stream = _Stream(target, ask)
    async with open_client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(stream.run, client, timeout_s)
        await stream.read(options.after_events)
        num_read, tokens_per_s = stream.num_events, stream.tokens_per_s
        stream.leave()
    after = await _until_quiet(target, options.quiet, timeout_s) if before is not None else None
    if before is None or after is None:
        return None, tokens_per_s
    return max(0.0, after - before - num_read), tokens_per_s


async def _first_byte(target: Target, client: Client, ask: Ask, timeout_s: float) -> float:
    """The moment of the first event of a request."""
    moments: list[float] = []

    def note(now: float, data: bytes) -> None:
        if b"data: {" in data:
            moments.append(now)

    await target.send(client, ask, timeout_s=timeout_s, on_arrival=note)
    if not moments:
        raise ServerUnusable(f"{target.address.url} did not answer a short request.")
    return moments[0]


async def _slot(target: Target, asks: Sequence[Ask], short: Ask, options: CancelOptions, timeout_s: float) -> float:
    """Seconds from the leaving of one of the streams to the first byte of the short request."""
    streams = [_Stream(target, ask) for ask in asks]
    async with open_client() as client, trio.open_nursery() as nursery:
        for stream in streams:
            nursery.start_soon(stream.run, client, timeout_s)
        for stream in streams:
            await stream.read(options.after_events)
        first: list[float] = []

        async def wait_behind() -> None:
            first.append(await _first_byte(target, client, short, timeout_s))

        async with trio.open_nursery() as waiting:
            waiting.start_soon(wait_behind)
            await trio.sleep(GRACE_S)
            left_s = streams[0].leave()
        for stream in streams:
            stream.leave()
    return max(0.0, first[0] - left_s)


async def _trials(target: Target, make: Maker, options: CancelOptions, *, seed: int, timeout_s: float) -> list[Trial]:
    """Raises ServerUnusable, out of whatever group it comes in."""
    try:
        return [
            await one_trial(target, make, options, seed=seed + number, timeout_s=timeout_s)
            for number in range(options.trials)
        ]
    except BaseExceptionGroup as group:
        error = leaf_error(group)
        if not isinstance(error, StartError):
            raise
        raise error from None


async def one_trial(target: Target, make: Maker, options: CancelOptions, *, seed: int, timeout_s: float) -> Trial:
    """Raises ServerUnusable when a request fails, or a stream is over before it can be left."""
    rng = random.Random(f"cancel:{seed}")
    long, *others = (
        Ask(content=make(rng, options.input_len), max_tokens=options.output_len) for _ in range(1 + options.slots)
    )
    idle, short = (Ask(content=make(rng, options.input_len), max_tokens=1) for _ in range(2))
    counted, tokens_per_s = await _count(target, long, options, timeout_s)
    async with open_client() as client:
        start_s = trio.current_time()
        idle_s = await _first_byte(target, client, idle, timeout_s) - start_s
    slot_s = await _slot(target, others, short, options, timeout_s)
    return Trial(tokens_counted=counted, slot_s=slot_s, idle_s=idle_s, tokens_per_s=tokens_per_s)


def summary_of(trials: Sequence[Trial]) -> dict[str, Any]:
    """Medians and largest values."""
    counted = [trial.tokens_counted for trial in trials if trial.tokens_counted is not None]
    figures: dict[str, Any] = {
        "tokens_after_counted": statistics.median(counted) if counted else None,
        "tokens_after_counted_max": max(counted) if counted else None,
    }
    for name in ("tokens_probed", "slot_s", "idle_s", "tokens_per_s"):
        values = [getattr(trial, name) for trial in trials]
        figures[name] = statistics.median(values)
        figures[f"{name}_max"] = max(values)
    return figures


async def cancel(servers: ServerOptions, options: CancelOptions, lengths: LengthOptions, report: OutputOptions) -> int:
    """Measure each server in turn and print a table. Raises StartError."""
    targets = await servers.probe()
    make = lengths.maker(targets)
    console = console_for(report)
    results: dict[str, Any] = {}
    for target in targets:
        trials = await _trials(target, make, options, seed=lengths.seed, timeout_s=servers.timeout)
        figures = summary_of(trials)
        results[target.name] = {"url": target.address.url, "model": target.model, "summary": figures}
        results[target.name]["trials"] = [attrs.asdict(trial) for trial in trials]
        _print(console, target, figures, options)
    write_figures(report, {"benchmark": "cancel", "settings": attrs.asdict(options), "servers": results})
    return 0


def _print(console: Console, target: Target, figures: dict[str, Any], options: CancelOptions) -> None:
    console.print(f"[bold]{target.name}[/bold] {target.address.url}  {target.model}", highlight=False)
    table = Table("", "median", "most", box=None, pad_edge=False, header_style="dim")
    for column in table.columns[1:]:
        column.justify = "right"
    if figures["tokens_after_counted"] is not None:
        counted = (figures["tokens_after_counted"], figures["tokens_after_counted_max"])
        table.add_row("tokens after the client left, counted", *(number(value, 0) for value in counted))
    else:
        probed = (figures["tokens_probed"], figures["tokens_probed_max"])
        table.add_row("tokens after the client left, about", *(number(value, 0) for value in probed))
    for label, name in (("until the slot served another, ms", "slot_s"), ("the same on an idle server, ms", "idle_s")):
        table.add_row(label, *(number(1000 * figures[key]) for key in (name, f"{name}_max")))
    console.print(table, highlight=False)
    if figures["slot_s"] == 0:
        console.print(f"Another was served at once: the server runs more than {options.slots} streams (--slots).")
    console.print()
