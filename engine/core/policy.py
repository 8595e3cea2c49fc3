"""Who is admitted next, and who must give way: the waiting queue behind one small interface.

A policy is told what waits and answers who is first; it never looks at blocks or budgets. Its cost per step must not
depend on how many wait.
"""

import abc
import heapq

from .request import Sequence, State

Rank = tuple[int | float, ...]


class Policy(abc.ABC):
    """The order of the waiting, and the rank of the running. Lower ranks are better."""

    @abc.abstractmethod
    def rank(self, sequence: Sequence) -> Rank:
        """Its place among the running: blocks go to the lowest rank first, the highest is preempted first."""

    @abc.abstractmethod
    def push(self, sequence: Sequence) -> None:
        """Let it wait. A preempted sequence comes back with the arrival it had, and so keeps its place."""

    @abc.abstractmethod
    def peek(self) -> Sequence | None:
        """Who is to be admitted next; None when nobody waits."""

    @abc.abstractmethod
    def remove(self, sequence: Sequence) -> None:
        """It no longer waits: admitted, or ended. Its `state` has already changed."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many wait."""


class FcfsPolicy(Policy):
    """First come, first served."""

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, Sequence]] = []
        self._num_waiting = 0

    def rank(self, sequence: Sequence) -> Rank:
        return (sequence.arrival,)

    def push(self, sequence: Sequence) -> None:
        heapq.heappush(self._heap, (self.rank(sequence), sequence))
        self._num_waiting += 1

    def peek(self) -> Sequence | None:
        heap = self._heap
        while heap and heap[0][1].state is not State.WAITING:
            heapq.heappop(heap)
        return heap[0][1] if heap else None

    def remove(self, sequence: Sequence) -> None:
        # Whoever is admitted stands first and goes at once. Who ends while waiting never comes back: the entry stays
        # until it surfaces, and once most entries are such, they are swept out, at O(1) a removal.
        self._num_waiting -= 1
        if self._heap[0][1] is sequence:
            heapq.heappop(self._heap)
        elif len(self._heap) > 64 and len(self._heap) > 2 * self._num_waiting:
            self._heap = [entry for entry in self._heap if entry[1].state is State.WAITING]
            heapq.heapify(self._heap)

    def __len__(self) -> int:
        return self._num_waiting
