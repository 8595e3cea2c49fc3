"""When open requests run out of time: their deadlines, and the moments by which they must have been admitted.

Imports the core alone and reads no clock. What has ended, or was admitted in time, is dropped when its turn comes, so
keeping a deadline costs O(log n) once and ending a request early costs nothing.
"""

import heapq
from collections.abc import Iterator, Mapping

from .ids import RequestId
from .request import Group


class Deadlines:
    """Every moment at which an open request may have to end. `groups` are the open requests, as their owner keeps
    them."""

    def __init__(self, groups: Mapping[RequestId, Group]) -> None:
        self._groups = groups
        self._heap: list[tuple[float, int, bool, RequestId]] = []
        """(moment, arrival, it is for admission alone, request): an arrival is used once, so no two are equal."""

    def add(self, group: Group) -> None:
        request = group.request
        for moment, for_admission in ((request.deadline, False), (request.admit_by, True)):
            if moment is not None:
                heapq.heappush(self._heap, (moment, group.arrival, for_admission, request.id))

    @property
    def next(self) -> float | None:
        """The next moment at which somebody's time runs out; None: nobody has a deadline."""
        while self._heap and not self._stands(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[tuple[RequestId, bool]]:
        """Who has run out of time, and whether only of the time to be admitted. Each must be ended before the next."""
        while (moment := self.next) is not None and moment <= now:
            _, _, for_admission, request_id = heapq.heappop(self._heap)
            yield request_id, for_admission

    def _stands(self, entry: tuple[float, int, bool, RequestId]) -> bool:
        _, arrival, for_admission, request_id = entry
        group = self._groups.get(request_id)
        return group is not None and group.arrival == arrival and not (for_admission and group.was_admitted)
