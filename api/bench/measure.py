"""From exchanges to figures: what one request took, and the summary of many.

Pure. Times are in seconds until a summary turns them into milliseconds. The terms:

    TTFT   from before the connection is opened to the first event that has text
    ITL    between two events that have text; a server that joins tokens of a slow reader has fewer of them
    TPOT   from the first to the last event, over the tokens after the first
    E2E    from before the connection is opened to the last event
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from ...engine.core.errors import ConfigurationError
from .response import MalformedResponse, Response, read_response

if TYPE_CHECKING:
    from .client import Exchange

PERCENTILES = (50, 90, 99)
MAX_ERROR_LENGTH = 300


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Event(msgspec.Struct):
    """What is read of an event; whatever else it has is passed over."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


@attrs.frozen(kw_only=True)
class Outcome:
    """One request, measured."""

    start_s: float
    end_s: float
    error: str | None = None
    """Why it doesn't count: then the rest is what there was."""
    ttft_s: float = 0.0
    itl_s: tuple[float, ...] = ()
    e2e_s: float = 0.0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    counted: bool = True
    """Whether the server said how many tokens; else each event with text counts as one."""
    text: str = ""

    @property
    def tpot_s(self) -> float | None:
        """None where there was one token, or none."""
        return (self.e2e_s - self.ttft_s) / (self.num_output_tokens - 1) if self.num_output_tokens > 1 else None


def read_outcome(exchange: "Exchange") -> Outcome:
    """Measure a streamed answer. Anything short of a whole one is an outcome with an error."""
    failed = Outcome(start_s=exchange.start_s, end_s=exchange.end_s, error=exchange.error)
    if exchange.error is not None:
        return failed
    try:
        response = read_response(exchange.arrivals)
    except MalformedResponse as error:
        return attrs.evolve(failed, error=str(error))
    if response.status != 200:
        return attrs.evolve(failed, error=f"status {response.status}: {error_text(response.body)}")
    if not response.events:
        return attrs.evolve(failed, error="the answer has no events: the server doesn't stream")
    return _read_events(response, failed)


def _read_events(response: Response, failed: Outcome) -> Outcome:
    start = failed.start_s
    times: list[float] = []
    texts: list[str] = []
    last, ended = start, False
    usage = _Usage()
    for time_s, data in response.events:
        if data == b"[DONE]":
            ended = True
            break
        try:
            event = _decode(data)
        except msgspec.DecodeError:
            return attrs.evolve(failed, error=f"an event is not JSON of the protocol: {_short(data)}")
        if event.error is not None:
            return attrs.evolve(failed, error=f"an error within the stream: {error_text(data)}")
        usage = event.usage or usage
        for choice in event.choices:
            last = time_s
            text = choice.text or (choice.delta and (choice.delta.content or choice.delta.reasoning_content))
            if text:
                times.append(time_s)
                texts.append(text)
            ended = ended or choice.finish_reason is not None
    if not ended:
        return attrs.evolve(failed, error="the stream was cut: it has neither a finish reason nor [DONE]")
    return Outcome(
        start_s=start,
        end_s=failed.end_s,
        ttft_s=(times[0] if times else last) - start,
        itl_s=tuple(after - before for before, after in pairwise(times)),
        e2e_s=last - start,
        num_prompt_tokens=usage.prompt_tokens or 0,
        num_output_tokens=len(times) if usage.completion_tokens is None else usage.completion_tokens,
        counted=usage.completion_tokens is not None,
        text="".join(texts),
    )


def error_text(body: bytes) -> str:
    """The message of an error body, or its beginning."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _short(body)
    while isinstance(found, dict) and (inner := found.get("error") or found.get("message") or found.get("detail")):
        found = inner
    return found[:MAX_ERROR_LENGTH] if isinstance(found, str) else _short(body)


def _short(data: bytes) -> str:
    return data[:MAX_ERROR_LENGTH].decode(errors="replace").strip() or "(nothing)"


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of sorted values, by linear interpolation between the two nearest (numpy's default)."""
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


@attrs.frozen(kw_only=True)
class Spread:
    """Many values of one kind, in milliseconds; NaN where there was none."""

    mean: float = math.nan
    p50: float = math.nan
    p90: float = math.nan
    p99: float = math.nan
    max: float = math.nan


def spread(seconds: Iterable[float]) -> Spread:
    """The mean and the percentiles."""
    ordered = sorted(value * 1e3 for value in seconds)
    if not ordered:
        return Spread()
    points = {f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES}
    return Spread(mean=sum(ordered) / len(ordered), max=ordered[-1], **points)


GOALS: dict[str, Callable[[Outcome], float | None]] = {
    "ttft": lambda outcome: outcome.ttft_s,
    "tpot": lambda outcome: outcome.tpot_s,
    "itl": lambda outcome: max(outcome.itl_s, default=None),
    "e2e": lambda outcome: outcome.e2e_s,
}
"""What a goal may be about. `itl` is the largest gap of a request."""

Goals = dict[str, float]
"""Names of GOALS, and the most seconds."""


def parse_goals(given: Sequence[str]) -> Goals:
    """`("ttft:300", "tpot:50")`, in milliseconds. Raises ConfigurationError."""
    goals: Goals = {}
    for goal in given:
        name, _, limit = goal.partition(":")
        try:
            seconds = float(limit) / 1e3
        except ValueError:
            seconds = -1.0
        if name not in GOALS or not seconds > 0:
            raise ConfigurationError(
                f"--goodput takes NAME:MILLISECONDS, NAME one of {', '.join(GOALS)}; not {goal!r}."
            )
        goals[name] = seconds
    return goals


def meets(outcome: Outcome, goals: Goals) -> bool:
    """Whether a request stayed within every goal. What it has no value for (TPOT of one token), it meets."""
    return outcome.error is None and all((GOALS[name](outcome) or 0.0) <= limit for name, limit in goals.items())


@attrs.frozen(kw_only=True)
class Summary:
    """What a server did in one round, or in several: the times of the rounds are added up."""

    num_completed: int
    num_failed: int
    errors: dict[str, int]
    duration_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_uncounted: int
    """Answers whose tokens are counted by events, because the server sent no usage."""
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    goodput_requests_per_s: float | None
    ttft_ms: Spread
    tpot_ms: Spread
    itl_ms: Spread
    e2e_ms: Spread


def summarize(rounds: Sequence[Sequence[Outcome]], goals: Goals | None = None) -> Summary:
    """The figures of one server. A round lasts from its first start to its last end, failures included."""
    outcomes = [outcome for outcomes in rounds for outcome in outcomes]
    done = [outcome for outcome in outcomes if outcome.error is None]
    duration = sum(
        max(outcome.end_s for outcome in outcomes) - min(outcome.start_s for outcome in outcomes)
        for outcomes in rounds
        if outcomes
    )
    prompt = sum(outcome.num_prompt_tokens for outcome in done)
    output = sum(outcome.num_output_tokens for outcome in done)

    def rate(count: int) -> float:
        return count / duration if duration > 0 else math.nan

    return Summary(
        num_completed=len(done),
        num_failed=len(outcomes) - len(done),
        errors=dict(Counter(outcome.error for outcome in outcomes if outcome.error is not None).most_common()),
        duration_s=duration,
        num_prompt_tokens=prompt,
        num_output_tokens=output,
        num_uncounted=sum(not outcome.counted for outcome in done),
        requests_per_s=rate(len(done)),
        output_tokens_per_s=rate(output),
        total_tokens_per_s=rate(prompt + output),
        goodput_requests_per_s=rate(sum(meets(outcome, goals) for outcome in done)) if goals else None,
        ttft_ms=spread(outcome.ttft_s for outcome in done),
        tpot_ms=spread(tpot for outcome in done if (tpot := outcome.tpot_s) is not None),
        itl_ms=spread(gap for outcome in done for gap in outcome.itl_s),
        e2e_ms=spread(outcome.e2e_s for outcome in done),
    )
