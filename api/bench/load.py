"""The load: sessions sent at a concurrency or at a rate, and measured when all have been answered.

Imports trio.
"""

import random
from collections.abc import Callable, Iterator, Sequence

import attrs
import trio

from .client import Client, Exchange, open_client
from .measure import Outcome, read_outcome
from .prompts import Ask, Session
from .target import Target


@attrs.frozen(kw_only=True)
class Pace:
    """How fast sessions begin. Without a rate they begin as soon as `concurrency` leaves room."""

    concurrency: int | None = None
    """Most sessions at a time; None is all of them."""
    request_rate: float | None = None
    """Sessions per second on average; the times between them are drawn from an exponential distribution."""
    seed: int = 0
    timeout_s: float = 600.0


async def run_load(
    target: Target, sessions: Sequence[Session], pace: Pace, *, on_done: Callable[[], None] = lambda: None
) -> list[Outcome]:
    """Send everything and measure it. `on_done` is told of each session that has ended. Never raises for a server's
    fault: outcomes carry errors."""
    sent: list[tuple[Ask, Exchange]] = []

    async def run(session: Session) -> None:
        await _converse(client, target, session, sent, pace.timeout_s)
        on_done()

    waiting = iter(sessions)
    async with open_client() as client, trio.open_nursery() as nursery:
        if pace.request_rate is None:
            for _ in range(min(pace.concurrency or len(sessions), len(sessions))):
                nursery.start_soon(_take_turns, run, waiting)
        else:
            rng = random.Random(pace.seed)
            room = trio.CapacityLimiter(pace.concurrency or len(sessions))
            due_s = trio.current_time()
            for session in waiting:
                await trio.sleep_until(due_s)
                nursery.start_soon(_with_room, run, session, room)
                due_s += rng.expovariate(pace.request_rate)
    return [_with_prompt_length(ask, read_outcome(exchange)) for ask, exchange in sent]


async def _take_turns(run: Callable[[Session], object], waiting: Iterator[Session]) -> None:
    for session in waiting:
        await run(session)  # type: ignore[misc]


async def _with_room(run: Callable[[Session], object], session: Session, room: trio.CapacityLimiter) -> None:
    async with room:
        await run(session)  # type: ignore[misc]


async def _converse(
    client: Client, target: Target, session: Session, sent: list[tuple[Ask, Exchange]], timeout_s: float
) -> None:
    """The requests of a session, in turn. It ends early where one fails: there is nothing to go on from."""
    history: list[Ask | str] = []
    for index, ask in enumerate(session, 1):
        exchange = await target.send(client, ask, tuple(history), timeout_s=timeout_s)
        sent.append((ask, exchange))
        if index < len(session):
            outcome = read_outcome(exchange)
            if outcome.error is not None:
                return
            history += [ask, outcome.text]


def _with_prompt_length(ask: Ask, outcome: Outcome) -> Outcome:
    """Where the server doesn't count the prompt's tokens, they are counted where they are known."""
    if outcome.num_prompt_tokens or isinstance(ask.content, str) or not all(isinstance(e, int) for e in ask.content):
        return outcome
    return attrs.evolve(outcome, num_prompt_tokens=len(ask.content))
