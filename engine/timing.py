"""A step's times as the scheduler loop sees them, from planning to publishing, gathered into one `StepSeen`.

Pure. It is told the moments and reads no clock.
"""

from collections import deque

import attrs

from .core.plan import StepPlan, StepResult
from .observer import Observer, StepSeen


@attrs.frozen
class _Landed:
    plan: StepPlan
    begun: float
    sent: float
    result: StepResult
    at: float
    committed: float


class StepTimes:
    """Steps in flight and the one that has landed and is still to be said."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._sent: deque[tuple[StepPlan, float, float]] = deque()
        self._landed: _Landed | None = None

    def planned(self, plan: StepPlan, begun: float, sent: float) -> None:
        """A plan was begun, and went out, at these moments."""
        self._sent.append((plan, begun, sent))

    def landed(self, result: StepResult, at: float, committed: float) -> None:
        """The oldest plan's result came, and was taken in, at these moments."""
        self._landed = _Landed(*self._sent.popleft(), result, at, committed)

    def lost(self) -> None:
        """What is in flight never lands."""
        self._sent.clear()

    def said(self, begun: float, at: float) -> None:
        """What came of it has been said, between these moments: the observer hears of the step."""
        landed = self._landed
        if landed is None:
            return
        self._landed = None
        plan = landed.plan
        seen = StepSeen(
            step=plan.step,
            num_tokens=plan.num_tokens,
            num_sequences=plan.num_sequences,
            num_prefill_tokens=sum(plan.chunk_lengths),
            begun=landed.begun,
            landed=landed.at,
            plan_seconds=landed.sent - landed.begun,
            device_seconds=landed.result.seconds,
            sample_seconds=landed.result.sample_seconds,
            commit_seconds=landed.committed - landed.at,
            said=begun,
            publish_seconds=at - begun,
        )
        self._observer.step(seen)
