"""An actor's inbox: messages are put without waiting, and taken all at once by the one actor it belongs to.

Imports trio through `parking`. Putting is synchronous because a request's clean-up must not await: nothing can then cut
the clean-up short. A queue nobody waits for needs its bound from elsewhere, so whoever makes an inbox says the most
messages it can ever hold and why; more than that is our bug, and raises.
"""

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

import trio

from .parking import ParkingSpot

Message = TypeVar("Message")


class Inbox(Generic[Message]):
    """First in, first out. Everything here belongs to the event loop's thread."""

    __slots__ = ("_limit", "_messages", "_spot")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._messages: deque[Message] = deque()
        self._spot = ParkingSpot()

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        """The messages that wait, oldest first; they stay."""
        return iter(self._messages)

    def put(self, message: Message) -> None:
        """Append, and wake the owner. Never blocks."""
        if len(self._messages) >= self._limit:
            raise AssertionError(f"an inbox holds its limit of {self._limit} messages: its reason does not hold")
        self._messages.append(message)
        self._spot.wake()

    def drain(self) -> list[Message]:
        """Take everything there is, oldest first; an empty list is an answer too."""
        messages = list(self._messages)
        self._messages.clear()
        return messages

    async def wait(self) -> None:
        """Return once there is a message. Always a checkpoint; nothing is taken, so a cancellation loses nothing."""
        if self._messages:
            await trio.lowlevel.checkpoint()
        while not self._messages:
            await self._spot.wait()
