"""A watcher's own copy of what it is told: events are put together as the page does it."""

from typing import Any

import attrs
import msgspec
import trio

from triolet.api.live.cells import STATES, apply_runs
from triolet.api.live.hub import Hub
from triolet.api.live.sampler import Sampler
from triolet.api.live.tap import Tap
from triolet.api.live.wire import LiveEvent
from triolet.engine.engine import Engine

decode = msgspec.json.Decoder(LiveEvent).decode


def event_of(data: bytes) -> LiveEvent:
    """From one event as it is framed."""
    assert data.startswith(b"data: ")
    assert data.endswith(b"\n\n")
    return decode(data[6:-2])


@attrs.define
class Mirror:
    """What is known after some events."""

    cells: str = ""
    known: dict[str, Any] = attrs.field(factory=dict)
    requests: dict[str, Any] = attrs.field(factory=dict)
    steps: list[Any] = attrs.field(factory=list)
    first_tokens: list[float] = attrs.field(factory=list)
    kinds: list[str] = attrs.field(factory=list)
    times: list[float] = attrs.field(factory=list)

    def take(self, event: LiveEvent) -> None:
        self.kinds.append(event.kind)
        self.times.append(event.at)
        if event.kind == "snapshot":
            self.requests.clear()
            self.steps.clear()
        for name in ("limits", "figures", "blocks", "more_requests", "prefixes", "gaps"):
            if (value := getattr(event, name)) is not None:
                self.known[name] = value
        width = 1 if self.known["limits"].blocks_per_cell == 1 else STATES
        self.cells = apply_runs(self.cells if event.cells is None else event.cells, event.changed_cells, width)
        self.requests |= {request.id: request for request in event.requests}
        for gone in event.gone:
            del self.requests[gone]
        self.steps += event.steps
        self.first_tokens += event.first_tokens


def live_of(engine: Engine, tap: Tap, *, shows_text: bool = True, **how: Any) -> Hub:
    return Hub(Sampler(engine, tap, shows_text=shows_text, clock=trio.current_time), **how)
