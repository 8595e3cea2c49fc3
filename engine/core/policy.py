"""Who is admitted next, and who must give way: the waiting queue behind one small interface.

A policy is told what waits and answers who is first; it never looks at blocks or budgets. Its cost per step must not
depend on how many wait. A policy of your own is a subclass of `Policy` named as `package.module:Class`.
"""

import abc
import heapq
from collections.abc import Callable
from importlib import import_module

from .errors import ConfigurationError
from .request import Sequence, State

Rank = tuple[int, ...]


class Policy(abc.ABC):
    """The order of the waiting, and the rank of the running. Lower ranks are better."""

    charges = False
    """Whether `charge` wants to be told what each sequence was given."""

    def rank(self, sequence: Sequence) -> Rank:
        """Its place among the running: blocks go to the lowest rank first, the highest is preempted first.

        Fixed for the life of a sequence: were it to change, two sequences could push each other out for ever.
        """
        return (sequence.group.arrival, sequence.choice)

    def outranks(self, waiting: Sequence, running: Sequence) -> bool:
        """Whether a waiting sequence may push this running one out when sequences or blocks are short."""
        return False

    def charge(self, sequence: Sequence, num_tokens: int) -> None:  # noqa: B027 -- most policies keep no account
        """A plan computes `num_tokens` of this sequence."""

    @abc.abstractmethod
    def push(self, sequence: Sequence) -> None:
        """Let it wait. A preempted sequence comes back with the arrival it had, and so keeps its place."""

    @abc.abstractmethod
    def peek(self) -> Sequence | None:
        """Who is to be admitted next; None when nobody waits."""

    @abc.abstractmethod
    def remove(self, sequence: Sequence) -> None:
        """It no longer waits: it is admitted, being the one that `peek` gave, or has ended. Its `state` says which."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many wait."""


class _Queue:
    """Waiting sequences in the order of their ranks. Whoever ends while waiting is swept out later, at O(1) each."""

    def __init__(self, rank: Callable[[Sequence], Rank]) -> None:
        self._rank = rank
        self._heap: list[tuple[Rank, int, Sequence]] = []
        self._num_pushed = 0
        self._num_waiting = 0

    def push(self, sequence: Sequence) -> None:
        self._num_pushed += 1
        heapq.heappush(self._heap, (self._rank(sequence), self._num_pushed, sequence))
        self._num_waiting += 1

    def peek(self) -> Sequence | None:
        heap = self._heap
        while heap and heap[0][2].state is not State.WAITING:
            heapq.heappop(heap)
        return heap[0][2] if heap else None

    def remove(self, sequence: Sequence) -> None:
        # Whoever is admitted stands first and goes at once, so it may come back. Who ends while waiting never does.
        self._num_waiting -= 1
        if self._heap[0][2] is sequence:
            heapq.heappop(self._heap)
        elif len(self._heap) > 64 and len(self._heap) > 2 * self._num_waiting:
            self._heap = [entry for entry in self._heap if entry[2].state is State.WAITING]
            heapq.heapify(self._heap)

    def __len__(self) -> int:
        return self._num_waiting


class FcfsPolicy(Policy):
    """First come, first served."""

    def __init__(self) -> None:
        self._queue = _Queue(self.rank)

    def push(self, sequence: Sequence) -> None:
        self._queue.push(sequence)

    def peek(self) -> Sequence | None:
        return self._queue.peek()

    def remove(self, sequence: Sequence) -> None:
        self._queue.remove(sequence)

    def __len__(self) -> int:
        return len(self._queue)


class PriorityPolicy(FcfsPolicy):
    """Lower `Request.priority` first, then first come, first served; a better one that waits pushes a worse one out."""

    def rank(self, sequence: Sequence) -> Rank:
        return (sequence.request.priority, sequence.group.arrival, sequence.choice)

    def outranks(self, waiting: Sequence, running: Sequence) -> bool:
        return waiting.request.priority < running.request.priority


class FairPolicy(Policy):
    """The key that has had the fewest tokens is admitted next; within a key, first come first served.

    Each key has a counter of tokens computed for it. A key that comes back from doing nothing starts no lower than the
    key admitted last, so that idleness saves nothing up (start-time fair queueing over virtual token counters).
    """

    charges = True

    def __init__(self) -> None:
        self._counters: dict[str, int] = {}
        self._queues: dict[str, _Queue] = {}
        self._order: list[tuple[int, str]] = []  # one entry for each key that waits, its counter perhaps out of date
        self._floor = 0
        self._num_waiting = 0

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        key = sequence.request.fairness_key
        self._counters[key] = self._counters.get(key, self._floor) + num_tokens

    def push(self, sequence: Sequence) -> None:
        key = sequence.request.fairness_key
        queue = self._queues.get(key)
        if queue is None:
            self._forget()
            queue = self._queues[key] = _Queue(self.rank)
            counter = self._counters[key] = max(self._counters.get(key, 0), self._floor)
            heapq.heappush(self._order, (counter, key))
        queue.push(sequence)
        self._num_waiting += 1

    def peek(self) -> Sequence | None:
        order = self._order
        while order:
            counter, key = order[0]
            queue = self._queues[key]
            first = queue.peek()
            if first is None:
                heapq.heappop(order)
                del self._queues[key]
            elif counter < self._counters[key]:
                heapq.heapreplace(order, (self._counters[key], key))
            else:
                return first
        return None

    def remove(self, sequence: Sequence) -> None:
        key = sequence.request.fairness_key
        if sequence.state is not State.ENDED:
            self._floor = max(self._floor, self._counters.get(key, 0))
        self._queues[key].remove(sequence)
        self._num_waiting -= 1

    def __len__(self) -> int:
        return self._num_waiting

    def _forget(self) -> None:
        """Drop counters that say no more than the floor does, once they are many: O(1) for each key ever seen."""
        if len(self._counters) > 1024 and len(self._counters) > 2 * len(self._queues):
            kept = {key: n for key, n in self._counters.items() if n > self._floor or key in self._queues}
            self._counters = kept


POLICIES: dict[str, Callable[[], Policy]] = {"fcfs": FcfsPolicy, "priority": PriorityPolicy, "fair": FairPolicy}


def make_policy(name: str) -> Policy:
    """The policy of that name, or the class that `package.module:Class` names. ConfigurationError: there is none."""
    if name in POLICIES:
        return POLICIES[name]()
    module_name, _, class_name = name.partition(":")
    known = f"{', '.join(POLICIES)}, or package.module:Class of your own"
    if not class_name:
        raise ConfigurationError(f"--scheduling-policy {name!r} is not known; it is one of {known}.")
    try:
        found = getattr(import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"--scheduling-policy {name!r} cannot be imported: {error}.") from error
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise ConfigurationError(
            f"--scheduling-policy {name!r} is not a subclass of triolet.engine.core.policy.Policy."
        )
    return found()
