"""A runner for the runner process that dies, hangs or raises where a test wants it: readable memory, no torch."""

import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

import attrs
import msgspec

from property_tests.memory import MemoryDevice
from triolet.engine.core.errors import ConfigurationError
from triolet.engine.core.plan import StepPlan, StepResult

from .simulated import VOCAB_SIZE

FACTORY = f"{__name__}:make_mortal"


@attrs.frozen(kw_only=True)
class Order:
    """What goes wrong, and when. Every field has to be plain data."""

    num_blocks: int = 64
    block_size: int = 4
    fault: str = ""
    """The name of a signal to itself, or "raise", "memory"."""
    when: str = ""
    """One of "load", "prefill", "decode", "copy" (some blocks are copied by then), or "decode and reset"."""
    marker: str | None = None
    """A file that is made when the fault happens, and keeps it from happening again; None: it happens every time."""


class MortalMemory(MemoryDevice):
    def __init__(self, order: Order) -> None:
        super().__init__(num_blocks=order.num_blocks, block_size=order.block_size, vocab_size=VOCAB_SIZE)
        self._order = order

    def execute(self, plan: StepPlan) -> StepResult:
        self._meet("prefill" if plan.chunk_sequences or plan.joined else "decode")
        return super().execute(plan)

    def reset(self) -> None:
        if self._order.when == "decode and reset":
            raise OSError("planted")
        super().reset()

    def _copy(self, plan: StepPlan) -> None:
        if plan.copy_targets:
            first = attrs.evolve(plan, copy_sources=plan.copy_sources[:1], copy_targets=plan.copy_targets[:1])
            super()._copy(first)
            self._meet("copy")
        super()._copy(plan)

    def _meet(self, place: str) -> None:
        meet(self._order, place)


def meet(order: Order, place: str) -> None:
    """The fault happens if this is its place, and its time."""
    if order.when.split()[:1] != [place] or (order.marker is not None and Path(order.marker).exists()):
        return
    if order.marker is not None:
        Path(order.marker).touch()
    match order.fault:
        case "raise":
            raise OSError("planted, at /some/path")
        case "memory":
            raise MemoryError
        case "configuration":
            raise ConfigurationError("--some-flag must be something else.")
        case name:
            os.kill(os.getpid(), signal.Signals[name])


def make_mortal(order: bytes, report: Callable[[str, int, int | None], None]) -> tuple[MortalMemory, str]:
    """A `device_child.Factory`."""
    asked = msgspec.msgpack.decode(order, type=Order)
    logging.getLogger("triolet.mortal").warning("made")
    report("Loading weights", 1, 2)
    meet(asked, "load")
    return MortalMemory(asked), "answer"
