"""Answering a batch: as many workers as requests may run at a time take lines from one reader, and append rows.

A server that is busy, or for a moment not there, is asked again, ever later. One that stays away ends the run: no row
is made of an outage, and the same command goes on. Imports trio; the server is `Post`, so that it can be another one.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

import attrs
import trio

from ...engine.core.errors import StartError
from ..asking.client import Answer, Client, Refused, message_of
from ..asking.exchange import Broken, Unreachable
from .files import OutputFile
from .rows import BadLine, Request, Row, answered, num_tokens, refused, unanswered

TRIES = 8
LONGEST_PAUSE_S = 30.0
BUSY = frozenset({429, 502, 503, 504})
"""Statuses that may be another one a moment later."""
DENIED = frozenset({401, 403})
"""Statuses that are about the key, and would be every row's."""

Post = Callable[[str, bytes], Awaitable[Answer]]


class Ended(Protocol):
    """Told of each row, with its tokens."""

    def __call__(self, num_tokens: int, /) -> None: ...


@attrs.define(kw_only=True)
class Batch:
    """One run over an input."""

    lines: Iterator[Request | BadLine]
    output: OutputFile
    ended: Ended

    async def run(self, post: Post, *, concurrency: int) -> None:
        """Until every line has a row.

        Raises Unreachable when the server stays away, Refused when it does not take the key, OSError when a row cannot
        be written.
        """
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(concurrency):
                    nursery.start_soon(self._work, post)
        except ExceptionGroup as group:
            raise group.exceptions[0] from group.exceptions[0].__cause__

    async def _work(self, post: Post) -> None:
        for line in self.lines:  # shared: each worker takes the next one, and none is taken twice
            await trio.lowlevel.checkpoint()
            if self.output.has(line):
                continue
            row = refused(line) if isinstance(line, BadLine) else await ask(post, line)
            self.output.append(row)
            self.ended(num_tokens(row))


async def ask(post: Post, request: Request) -> Row:
    """A row. Raises Unreachable when no connection could be had as often as TRIES says, and Refused."""
    for tried in range(1, TRIES + 1):
        last = tried == TRIES
        pause_s = min(2.0 ** (tried - 1), LONGEST_PAUSE_S)
        try:
            answer = await post(request.url, request.body)
        except Unreachable:
            if last:
                raise
        except Broken as error:
            if last:
                return unanswered(request, error.message)
        else:
            if answer.status in DENIED:
                raise Refused(message_of(answer.body, answer.status))
            if last or answer.status not in BUSY:
                return answered(request, status=answer.status, request_id=answer.request_id, body=answer.body)
            pause_s = max(pause_s, min(answer.retry_after_s or 0.0, LONGEST_PAUSE_S))
        await trio.sleep(pause_s)
    raise AssertionError("the last try gives a row or raises")


async def look_up(client: Client) -> None:
    """See whether the server is there, before anything waits for it to come back. Raises StartError."""
    try:
        await client.models()
    except Refused:
        pass  # It is there; not every server lists its models.
    except (Unreachable, Broken) as error:
        raise StartError(error.message) from None
