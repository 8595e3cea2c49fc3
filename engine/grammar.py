"""The grammar actor: finds out whether a request's constraint can be compiled, before the request is scheduled.

Imports trio. Like the tokenizer it has no task: the work is done for the request that wants it, in a thread of its own
that gives way to all others, one at a time. The device finds the result where it was compiled (`model/grammar.py`).
"""

import json
from collections import OrderedDict
from functools import partial
from typing import Protocol

import trio

from .core.errors import InvalidRequest, Overloaded
from .core.grammar import GrammarSpec
from .json_schema import why_not, why_not_ebnf, why_not_regex, why_not_tag
from .nice_thread import run_nicely

COMPILE_S = 20.0
"""A constraint that takes longer is refused: some two seconds of work where cores are short (`nice_thread.py`)."""
WAIT_S = 30.0
"""A request that waits longer for those before it is refused."""
MAX_AT_ONCE = 16 * 1024
"""Characters of a constraint that is looked through at once; a longer one takes a thread, so that no stream waits."""
MAX_KNOWN = 4096
"""Refused constraints whose reasons are remembered."""


class Compiler(Protocol):
    """What the actor needs of the model room. May be called from any thread."""

    def has(self, spec: GrammarSpec, /) -> bool:
        """It has been compiled and is kept."""

    def prepare(self) -> None:
        """What is done once, before the first compilation."""

    def prepare_texts(self) -> object:
        """What has to be known of the vocabulary to follow an answer's reasoning."""

    def compile(self, spec: GrammarSpec, /) -> object:
        """Raises InvalidRequest."""


class GrammarClient:
    """Compiles for whoever asks."""

    def __init__(self, compiler: Compiler | None) -> None:
        """None: this engine takes no constraints."""
        self._compiler = compiler
        self._turn = trio.Semaphore(1)
        self._reader = trio.CapacityLimiter(1)  # who looks through one holds the interpreter: many would, all the time
        self._refused: OrderedDict[tuple[GrammarSpec, str], str] = OrderedDict()

    async def prepare_texts(self) -> None:
        """Return once the device can follow an answer's reasoning without reading anything first. Cancellable."""
        if self._compiler is not None:
            await trio.to_thread.run_sync(self._compiler.prepare_texts, abandon_on_cancel=True)

    async def prepare(self, spec: GrammarSpec) -> None:
        """Return once the device will find the grammar compiled. Cancellable: a compilation under way is finished for
        nobody. Raises InvalidRequest naming the field, Overloaded where those before it take too long."""
        compiler = self._compiler
        if compiler is None:
            raise InvalidRequest("This server takes no constraints on the form of an answer.", param=spec.param)
        if (message := self._refused.get((spec, spec.param))) is not None:
            raise InvalidRequest(message, param=spec.param)
        if compiler.has(spec):
            return
        try:
            with trio.move_on_after(WAIT_S) as waiting:
                if len(spec.source) > MAX_AT_ONCE:
                    await trio.to_thread.run_sync(_check, spec, abandon_on_cancel=True, limiter=self._reader)
                else:
                    _check(spec)
                await self._turn.acquire()
            if waiting.cancelled_caught:
                raise Overloaded("Too many constraints wait to be compiled.", retry_after_s=round(WAIT_S))
            with trio.move_on_after(COMPILE_S) as compiling:
                await run_nicely(compiler.prepare, partial(compiler.compile, spec), self._turn.release)
            if compiling.cancelled_caught:
                raise InvalidRequest(
                    f"{spec.param} cannot be compiled: it takes more than {COMPILE_S:g} s.", param=spec.param
                )
        except InvalidRequest as error:
            self._refused[spec, spec.param] = error.message
            if len(self._refused) > MAX_KNOWN:
                self._refused.popitem(last=False)
            raise


def _check(spec: GrammarSpec) -> None:
    reason = None
    match spec.kind:
        case "json_schema":
            reason = why_not(json.loads(spec.source))
        case "structural_tag":
            reason = why_not_tag(json.loads(spec.source))
        case "regex":
            reason = why_not_regex(spec.source)
        case "ebnf":
            reason = why_not_ebnf(spec.source)
    if reason is not None:
        raise InvalidRequest(f"{spec.param} cannot be compiled: {reason}.", param=spec.param)
