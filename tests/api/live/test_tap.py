"""The tap: not there while nobody listens, and bounded while somebody does."""

import pytest

from triolet.api.live.tap import FIRST_TOKENS_MAX, GAPS_MAX, STEPS_MAX, Tap
from triolet.api.live.wire import LiveGaps, LiveStep
from triolet.engine.observer import NoObserver, StepSeen


class Counting(NoObserver):
    """Counts what it is told."""

    def __init__(self) -> None:
        self.told = 0

    def step(self, seen: StepSeen) -> None:
        self.told += 1

    def first_token(self, seconds: float) -> None:
        self.told += 1

    def inter_token(self, seconds: float, count: int) -> None:
        self.told += 1


def seen(step: int) -> StepSeen:
    return StepSeen(
        step=step,
        num_tokens=12,
        num_sequences=5,
        num_prefill_tokens=8,
        begun=1.0,
        landed=1.25,
        plan_seconds=0.0,
        device_seconds=0.2,
        sample_seconds=0.0,
        commit_seconds=0.0,
        said=0.0,
        publish_seconds=0.0,
    )


def test_while_nobody_listens_the_tap_is_not_there() -> None:
    """What the engine calls are the inner observer's own methods, before and after."""
    inner = Counting()
    tap = Tap(inner)
    for _ in range(2):
        assert not tap.is_listened_to
        for name in ("step", "first_token", "inter_token", "finished", "aborted", "detokenized"):
            assert getattr(tap, name) == getattr(inner, name)
        with tap.listening():
            assert tap.is_listened_to


def test_what_is_heard_is_passed_on_and_taken_once() -> None:
    """Steps, first tokens, and the times between tokens as percentiles; nobody else may listen meanwhile."""
    inner = Counting()
    tap = Tap(inner)
    with tap.listening() as heard:
        tap.step(seen(3))
        tap.first_token(0.5)
        for seconds in range(1, 100):
            tap.inter_token(seconds, 1)
        tap.inter_token(400.0, 4)
        assert inner.told == 102
        assert heard.take_steps() == (LiveStep(3, 8, 4, 5, 0.25),)
        assert heard.take_first_tokens() == (0.5,)
        assert heard.take_gaps() == LiveGaps(count=103, p50=50, p99=99, most=100)
        assert (heard.take_steps(), heard.take_first_tokens(), heard.take_gaps()) == ((), (), None)
        with pytest.raises(AssertionError, match="listens already"), tap.listening():
            pass


def test_what_nobody_takes_is_bounded() -> None:
    """The newest are kept."""
    tap = Tap(NoObserver())
    with tap.listening() as heard:
        for number in range(5000):
            tap.step(seen(number))
            tap.first_token(number)
            tap.inter_token(number, 1)
        assert len(steps := heard.take_steps()) == STEPS_MAX
        assert steps[-1].step == 4999
        assert len(heard.take_first_tokens()) == FIRST_TOKENS_MAX
        assert len(heard.gaps) == GAPS_MAX
        gaps = heard.take_gaps()
        assert gaps is not None
        assert gaps.count == 5000
