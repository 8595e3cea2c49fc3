"""What a device has answered and nobody has received yet: in order, each a value or an error.

Imports trio through `parking`. It holds at most one answer for each plan that the loop has in flight.
"""

from collections import deque

import outcome
import trio

from .parking import ParkingSpot


class Outcomes:
    """For one receiver. Everything here belongs to the event loop's thread."""

    __slots__ = ("_line", "_spot")

    def __init__(self) -> None:
        self._line: deque[outcome.Outcome[object]] = deque()
        self._spot = ParkingSpot()

    def put(self, answer: outcome.Outcome[object]) -> None:
        """Never blocks."""
        self._line.append(answer)
        self._spot.wake()

    def clear(self) -> None:
        """Nobody wants what is there."""
        self._line.clear()

    async def take(self) -> object:
        """The oldest, as soon as there is one: returned, or raised if it is an error. Always a checkpoint; cancelled,
        nothing is lost."""
        if self._line:
            await trio.lowlevel.checkpoint()
        while not self._line:
            await self._spot.wait()
        return self._line.popleft().unwrap()
