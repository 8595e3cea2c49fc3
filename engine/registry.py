"""The open requests: who is in which stage, who may still come in, and who must be told when the engine dies.

Imports trio (through the mailboxes). It is the door: past its bounds a request is refused before anything is spent on
it. These bounds are also the reason for the bounds of the actors' inboxes.
"""

import enum
import math
from collections import deque
from collections.abc import Callable, Iterable

import attrs
import trio

from .core.errors import InvalidRequest, Overloaded, TrioletError
from .core.ids import RequestId
from .mailbox import Mailbox
from .parking import ParkingSpot
from .story import Story

RETRY_AFTER_S_MAX = 60


class Stage(enum.Enum):
    """Where a request is. TOKENIZING ─▶ WAITING ─▶ ADMITTED ─▶ ENDED, and from each stage to ENDED.

    ADMITTED is for good: a request that is preempted waits again in the scheduler, and is not counted as queued here.
    """

    TOKENIZING = "tokenizing"
    WAITING = "waiting"
    ADMITTED = "admitted"
    ENDED = "ended"


QUEUED = frozenset({Stage.TOKENIZING, Stage.WAITING})


@attrs.define(kw_only=True, eq=False)
class OpenRequest:
    """One request between its coming in and its terminal event, or its reader's leaving if that is later."""

    id: RequestId
    """Its name inside the engine, used once."""
    name: str
    """What the client calls it: unique among the scopes that are open."""
    arrival_time: float
    mailbox: Mailbox
    story: Story
    stage: Stage = Stage.TOKENIZING
    supersede_key: str | None = None
    aborted: bool = False
    """The scheduler has been told to end it, or will never hear of it."""
    aborted_by: str | None = None
    """What its reader is told as the stop reason of an abort."""
    tokenizing: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """Cancelled, the request ends before it is submitted; `aborted` says whether on somebody's order."""
    moved: ParkingSpot = attrs.field(factory=ParkingSpot)
    """Woken whenever its stage changes."""
    num_prompt_tokens: int = 0
    """An estimate until it has been tokenized."""
    num_cached_tokens: int = 0


class Registry:
    """Every open request. Everything here is synchronous and belongs to the event loop's thread.

    At most `max_queued` requests are tokenizing or waiting, and at most `max_queued + max_running` are open at all:
    what is preempted beyond `max_running` counts as queued. A request whose reader has left counts until its terminal
    event, so that a storm of cancellations cannot fill the inboxes. Those that are queued have at most
    `max_queued_tokens` prompt tokens, or one of them has all. The stories of the last `num_kept` requests that ended
    are kept.
    """

    def __init__(
        self,
        *,
        max_queued: int,
        max_running: int,
        max_queued_tokens: float = math.inf,
        num_kept: int = 0,
        on_ended: Callable[[Story], None] = lambda story: None,
    ) -> None:
        """`on_ended` is told of each story that is over; see `Observer.ended`."""
        self._max_queued = max_queued
        self._max_queued_tokens = max_queued_tokens
        self._num_queued_tokens = 0
        self._max_open = max_queued + max_running
        self._by_id: dict[RequestId, OpenRequest] = {}
        self._by_name: dict[str, OpenRequest] = {}
        self._by_key: dict[str, OpenRequest] = {}
        self._counts = dict.fromkeys(Stage, 0)
        self._num_arrivals = 0
        self._kept: deque[Story] = deque(maxlen=num_kept)
        self._ended_times: deque[float] = deque(maxlen=64)
        self._on_ended = on_ended
        self._all_left = ParkingSpot()

    @property
    def max_open(self) -> int:
        """The most requests that are open at a time."""
        return self._max_open

    @property
    def max_queued(self) -> int:
        return self._max_queued

    @property
    def max_queued_tokens(self) -> int:
        """0 where there is no limit."""
        return 0 if math.isinf(self._max_queued_tokens) else int(self._max_queued_tokens)

    def set_limits(self, *, max_queued: int | None, max_queued_tokens: int | None) -> None:
        """Other bounds of the queue for who comes from now on; None: as it was, 0 tokens: no bound. `max_queued` must
        not grow beyond what it was at first: `max_open` and the actors' inboxes rest on that."""
        if max_queued is not None:
            self._max_queued = max_queued
        if max_queued_tokens is not None:
            self._max_queued_tokens = max_queued_tokens or math.inf

    @property
    def num_open(self) -> int:
        """Requests whose terminal event is still to come."""
        return len(self._by_id)

    @property
    def num_tokenizing(self) -> int:
        return self._counts[Stage.TOKENIZING]

    @property
    def num_queued(self) -> int:
        """Requests that are tokenizing, or waiting for their first admission."""
        return self._counts[Stage.TOKENIZING] + self._counts[Stage.WAITING]

    @property
    def num_queued_tokens(self) -> int:
        """The prompt tokens of the requests that are queued."""
        return self._num_queued_tokens

    def get(self, request_id: RequestId) -> OpenRequest | None:
        """The request of that inner id, if its terminal event is still to come."""
        return self._by_id.get(request_id)

    @property
    def open_requests(self) -> Iterable[OpenRequest]:
        """Those whose terminal event is still to come, the oldest first."""
        return self._by_id.values()

    def named(self, name: str) -> OpenRequest | None:
        """The request that a client calls so, if its scope is open."""
        return self._by_name.get(name)

    def stories(self) -> list[Story]:
        """Those of the open requests and of the last that ended, the newest first."""
        found = [*(request.story for request in self._by_id.values()), *self._kept]
        return sorted(found, key=lambda story: -story.arrival_time)

    def enter(self, name: str | None, now: float, *, num_choices: int = 1, num_tokens: int = 1) -> OpenRequest:
        """Let a request of about `num_tokens` prompt tokens in. Raises Overloaded past the bounds, InvalidRequest for a
        name that is in use."""
        if (refusal := self.refusal(now)) is not None:
            raise refusal
        if self.num_queued and self._num_queued_tokens + num_tokens > self._max_queued_tokens:
            raise self._overloaded(f"The queue is full: {self._num_queued_tokens} prompt tokens are waiting.", now)
        self._num_arrivals += 1
        if name is None:
            name = f"request-{self._num_arrivals}"
        if name in self._by_name:
            raise InvalidRequest(f"The request id {name!r} is in use by an open request.", param="request_id")
        # A client may use a name again before the scheduler has ended the request that last had it.
        request_id = RequestId(name)
        if request_id in self._by_id:
            request_id = RequestId(f"{name}~{self._num_arrivals}")
        request = OpenRequest(
            id=request_id,
            name=name,
            arrival_time=now,
            mailbox=Mailbox(num_choices),
            story=Story(name=name, arrival_time=now, num_choices=num_choices),
            num_prompt_tokens=num_tokens,
        )
        self._num_queued_tokens += num_tokens
        self._by_id[request_id] = self._by_name[name] = request
        self._counts[request.stage] += 1
        return request

    def refusal(self, now: float) -> Overloaded | None:
        """What any request that came now would be told; None while there is room for one more."""
        if self.num_queued < self._max_queued and self.num_open < self._max_open:
            return None
        return self._overloaded(f"The queue is full: {self.num_queued} requests are waiting.", now)

    def supersede(self, request: OpenRequest, key: str) -> OpenRequest | None:
        """From now on `key` means this request; who was meant before, if its scope is open."""
        older = self._by_key.get(key)
        request.supersede_key = key
        self._by_key[key] = request
        return older

    def count_tokens(self, request: OpenRequest, num_tokens: int) -> None:
        """A request that is being tokenized has so many prompt tokens."""
        self._num_queued_tokens += num_tokens - request.num_prompt_tokens
        request.num_prompt_tokens = num_tokens

    def move(self, request: OpenRequest, stage: Stage, now: float) -> None:
        """A request has got further. Once ENDED it no longer counts, and is known by its scope's name alone; what is
        said of it later changes nothing (the engine may die while there is news of it)."""
        if request.stage is Stage.ENDED:
            return
        self._counts[request.stage] -= 1
        if request.stage in QUEUED and stage not in QUEUED:
            self._num_queued_tokens -= request.num_prompt_tokens
        request.stage = stage
        request.moved.wake()
        if stage is Stage.ENDED:
            del self._by_id[request.id]
            self._ended_times.append(now)
            request.story.ended(now, None, None)
            self._kept.append(request.story)
            self._on_ended(request.story)
        else:
            self._counts[stage] += 1

    def leave(self, request: OpenRequest, now: float) -> bool:
        """Its scope is left. True: the scheduler still has it and must be told (once)."""
        if request.mailbox.closed:
            return False
        request.mailbox.close()
        del self._by_name[request.name]
        if request.supersede_key is not None and self._by_key.get(request.supersede_key) is request:
            del self._by_key[request.supersede_key]
        if not self._by_name:
            self._all_left.wake()
        if request.stage is Stage.TOKENIZING:
            self.move(request, Stage.ENDED, now)
        if request.stage is Stage.ENDED or request.aborted:
            return False
        request.aborted = True
        return True

    def fail_all(self, make_error: Callable[[], TrioletError], now: float) -> None:
        """The engine is dead: every open request gets its one terminal event."""
        for request in list(self._by_id.values()):
            if not request.mailbox.finished:
                request.mailbox.fail(make_error())
            self.move(request, Stage.ENDED, now)

    async def wait_all_left(self) -> None:
        """Return once no scope is open."""
        while self._by_name:
            await self._all_left.wait()

    def not_admitted(self, request: OpenRequest, now: float) -> Overloaded:
        """What is said to a request whose time in the queue is over."""
        return self._overloaded(f"The request was not admitted within {now - request.arrival_time:.3g} s.", now)

    def _overloaded(self, message: str, now: float) -> Overloaded:
        return Overloaded(message, retry_after_s=self._retry_after_s(now))

    def _retry_after_s(self, now: float) -> int:
        """When the queue as it is now would have been served, at the rate of the last 64 ends."""
        ended = self._ended_times
        if len(ended) < 2 or now <= ended[0]:
            return 1
        rate = (len(ended) - 1) / (now - ended[0])
        return min(max(math.ceil(self.num_queued / rate), 1), RETRY_AFTER_S_MAX)
