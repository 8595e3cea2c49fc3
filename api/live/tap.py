"""An observer that can be listened to: steps, and times of tokens, for as long as somebody wants them.

Whatever it hears it passes on to the observer behind it. While nobody listens, what the engine calls is that observer's
own methods: the tap is not there.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from ...engine.observer import NoObserver, Observer, StepSeen
from .wire import LiveGaps, LiveStep

STEPS_MAX = 256
"""Steps between two samples that are kept: of faster ones the newest."""
FIRST_TOKENS_MAX = 64
GAPS_MAX = 2048
"""Times between tokens that are kept between two samples: 32 sequences at a step of 2 ms come to 1,600."""


class Heard:
    """What has come since it was last taken. Bounded."""

    def __init__(self) -> None:
        self.steps: deque[LiveStep] = deque(maxlen=STEPS_MAX)
        self.first_tokens: deque[float] = deque(maxlen=FIRST_TOKENS_MAX)
        self.gaps: deque[float] = deque(maxlen=GAPS_MAX)
        self.num_gaps = 0

    def take_steps(self) -> tuple[LiveStep, ...]:
        steps = tuple(self.steps)
        self.steps.clear()
        return steps

    def take_first_tokens(self) -> tuple[float, ...]:
        seconds = tuple(self.first_tokens)
        self.first_tokens.clear()
        return seconds

    def take_gaps(self) -> LiveGaps | None:
        if not self.gaps:
            return None
        gaps, count = sorted(self.gaps), self.num_gaps
        self.gaps.clear()
        self.num_gaps = 0
        last = len(gaps) - 1
        return LiveGaps(
            count=count,
            p50=round(gaps[last // 2], 6),
            p99=round(gaps[round(last * 0.99)], 6),
            most=round(gaps[-1], 6),
        )


class Tap(NoObserver):
    """In front of `inner`."""

    def __init__(self, inner: Observer) -> None:
        self._inner = inner
        self._heard: Heard | None = None
        self.finished = inner.finished  # type: ignore[method-assign]
        self.aborted = inner.aborted  # type: ignore[method-assign]
        self.detokenized = inner.detokenized  # type: ignore[method-assign]
        self.ended = inner.ended  # type: ignore[method-assign]
        self._bypass()

    @property
    def is_listened_to(self) -> bool:
        return self._heard is not None

    @contextmanager
    def listening(self) -> Iterator[Heard]:
        """One listener at a time."""
        if self._heard is not None:
            raise AssertionError("somebody listens already")
        self._heard = heard = Heard()
        self.step = self._step  # type: ignore[method-assign]
        self.first_token = self._first_token  # type: ignore[method-assign]
        self.inter_token = self._inter_token  # type: ignore[method-assign]
        try:
            yield heard
        finally:
            self._heard = None
            self._bypass()

    def _bypass(self) -> None:
        self.step = self._inner.step  # type: ignore[method-assign]
        self.first_token = self._inner.first_token  # type: ignore[method-assign]
        self.inter_token = self._inner.inter_token  # type: ignore[method-assign]

    def _step(self, seen: StepSeen) -> None:
        self._inner.step(seen)
        if self._heard is not None:
            step = LiveStep(
                seen.step,
                seen.num_prefill_tokens,
                seen.num_tokens - seen.num_prefill_tokens,
                seen.num_sequences,
                round(seen.landed - seen.begun, 6),
            )
            self._heard.steps.append(step)

    def _first_token(self, seconds: float) -> None:
        self._inner.first_token(seconds)
        if self._heard is not None:
            self._heard.first_tokens.append(round(seconds, 6))

    def _inter_token(self, seconds: float, count: int) -> None:
        self._inner.inter_token(seconds, count)
        if self._heard is not None:
            self._heard.gaps.append(seconds / count)
            self._heard.num_gaps += count
