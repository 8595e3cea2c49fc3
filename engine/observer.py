"""Who measures: the engine calls an observer with what it sees of requests and steps.

Pure. All times are in seconds of the trio clock, taken where the text becomes ready to be read, so tokenizing, queueing
and detokenizing count, and the client's own slowness does not. An observer runs inside the scheduler loop and the
detokenizer: it must neither wait nor raise. For a token it is called with numbers alone, and nothing is made for it;
for a step and for a request's end it gets one record.
"""

import enum
from typing import TYPE_CHECKING, Protocol

import attrs

from .core.events import FinishReason

if TYPE_CHECKING:
    from .story import Story


class AbortReason(enum.StrEnum):
    """Why a request ended before its answer did, when nothing went wrong."""

    LEFT = "left"
    """Its scope was left: the client has gone."""
    CANCELLED = "cancelled"
    """Ended by name, its reader still there."""
    SUPERSEDED = "superseded"
    DEADLINE = "deadline"
    QUEUE_TIME = "queue_time"
    """It was not admitted in the time that it had for that."""


class Phase(enum.StrEnum):
    """How far a request had got."""

    TOKENIZING = "tokenizing"
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"


@attrs.frozen(kw_only=True)
class RequestEnd:
    """A request that the scheduler had, at its terminal event."""

    name: str
    """What its client calls it."""
    reason: FinishReason
    abort_reason: AbortReason | None = None
    arrival_time: float
    admitted_time: float | None = None
    """None: it never was."""
    first_token_time: float | None = None
    last_token_time: float | None = None
    end_time: float
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    """Of all its answers."""
    longest_answer: int = 0
    """Tokens of the longest of its answers."""
    num_choices: int = 1
    max_tokens: int | None = None
    num_preemptions: int = 0

    @property
    def phase(self) -> Phase:
        if self.first_token_time is not None:
            return Phase.DECODE
        return Phase.WAITING if self.admitted_time is None else Phase.PREFILL

    @property
    def e2e_seconds(self) -> float:
        return self.end_time - self.arrival_time

    @property
    def queue_seconds(self) -> float:
        """From arrival to admission, or to the end if it was never admitted."""
        return (self.end_time if self.admitted_time is None else self.admitted_time) - self.arrival_time

    @property
    def prefill_seconds(self) -> float | None:
        """From admission to the first token."""
        if self.admitted_time is None or self.first_token_time is None:
            return None
        return self.first_token_time - self.admitted_time

    @property
    def decode_seconds(self) -> float | None:
        """From the first token to the last."""
        if self.first_token_time is None or self.last_token_time is None:
            return None
        return self.last_token_time - self.first_token_time

    @property
    def inference_seconds(self) -> float | None:
        """From admission to the last token."""
        if self.admitted_time is None or self.last_token_time is None:
            return None
        return self.last_token_time - self.admitted_time

    @property
    def seconds_per_output_token(self) -> float | None:
        """The mean time between two tokens of an answer; None where there are not two."""
        decode = self.decode_seconds
        return None if decode is None or self.longest_answer < 2 else decode / (self.longest_answer - 1)


@attrs.frozen(kw_only=True)
class StepSeen:
    """A step that has landed, and what the scheduler loop spent on it."""

    step: int
    num_tokens: int
    num_sequences: int
    num_prefill_tokens: int
    """Of the chunks of more than one token."""
    begun: float
    """The moment when planning began."""
    landed: float
    """The moment when the result was there."""
    plan_seconds: float
    device_seconds: float
    """On the device, sampling included."""
    sample_seconds: float
    commit_seconds: float
    """To take the result in."""
    said: float
    """The moment when the loop began to say what came of it; the next plan is out by then."""
    publish_seconds: float
    """To say it."""

    @property
    def forward_seconds(self) -> float:
        return max(0.0, self.device_seconds - self.sample_seconds)


class Observer(Protocol):
    """What can be observed. Subclass `NoObserver` to look at a part of it."""

    def first_token(self, seconds: float) -> None:
        """A request's first token, counted from the request's arrival."""

    def inter_token(self, seconds: float, count: int) -> None:
        """`count` further tokens of a request (one, mostly), this long after its last ones."""

    def finished(self, end: RequestEnd) -> None:
        """The terminal event of a request that the scheduler had."""

    def aborted(self, reason: AbortReason, phase: Phase) -> None:
        """A request ended before its answer did. One that was still being tokenized is not among the `finished`."""

    def step(self, seen: StepSeen) -> None:
        """A step has landed and been said."""

    def detokenized(self, seconds: float) -> None:
        """The detokenizer has taken a step's events in."""

    def ended(self, story: "Story") -> None:
        """A request is over that had come in, tokenized or not. Its story goes on for a moment: what it says of the end
        is there when the caller has returned to the event loop, and does not change any more then."""


class NoObserver:
    """Looks away."""

    def first_token(self, seconds: float) -> None:
        pass

    def inter_token(self, seconds: float, count: int) -> None:
        pass

    def finished(self, end: RequestEnd) -> None:
        pass

    def aborted(self, reason: AbortReason, phase: Phase) -> None:
        pass

    def step(self, seen: StepSeen) -> None:
        pass

    def detokenized(self, seconds: float) -> None:
        pass

    def ended(self, story: "Story") -> None:
        pass
