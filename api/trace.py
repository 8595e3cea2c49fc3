"""`--trace FILE`: steps, what the actors do, and requests, as a Chrome trace that chrome://tracing and Perfetto read.

Events are written as they come, a line each, so a file that was cut short is readable too (the closing bracket may be
missing). Times are in microseconds since the trace was opened, before the model is loaded. A name that a client chose
is in it, never a text.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

import trio

from ..engine.core.errors import ConfigurationError
from ..engine.observer import NoObserver, Observer, RequestEnd, StepSeen
from ..engine.story import Story
from .metrics import Metrics

SCHEDULER, DEVICE, DETOKENIZER = 1, 2, 3
"""Threads of the picture, one for each actor."""


class Trace(NoObserver):
    """Passes all on to another observer; a token costs nothing more."""

    def __init__(self, file: IO[str], inner: Metrics, clock: Callable[[], float]) -> None:
        """`clock`: that of the observed moments."""
        self._file = file
        self._inner = inner
        self._clock = clock
        self._start = clock()
        self._num_requests = 0
        self._separator = "[\n"
        self.first_token = inner.first_token  # type: ignore[method-assign]
        self.inter_token = inner.inter_token  # type: ignore[method-assign]
        self.aborted = inner.aborted  # type: ignore[method-assign]
        for thread, name in ((SCHEDULER, "scheduler loop"), (DEVICE, "device"), (DETOKENIZER, "detokenizer")):
            self._write({"name": "thread_name", "ph": "M", "pid": 1, "tid": thread, "args": {"name": name}})

    def step(self, seen: StepSeen) -> None:
        self._inner.step(seen)
        facts = {
            "step": seen.step,
            "tokens": seen.num_tokens,
            "prefill_tokens": seen.num_prefill_tokens,
            "sequences": seen.num_sequences,
        }
        sent = seen.begun + seen.plan_seconds
        self._span("plan", SCHEDULER, seen.begun, seen.plan_seconds, {"step": seen.step})
        self._span("step", DEVICE, max(sent, seen.landed - seen.device_seconds), seen.device_seconds, facts)
        self._span("sample", DEVICE, seen.landed - seen.sample_seconds, seen.sample_seconds, {})
        self._span("commit", SCHEDULER, seen.landed, seen.commit_seconds, {"step": seen.step})
        self._span("publish", SCHEDULER, seen.said, seen.publish_seconds, {"step": seen.step})
        self._event(
            "C", "tokens of a step", seen.begun, args={"prefill": seen.num_prefill_tokens, "all": seen.num_tokens}
        )

    def finished(self, end: RequestEnd) -> None:
        self._inner.finished(end)
        self._num_requests += 1
        facts = {
            "reason": end.reason,
            "prompt_tokens": end.num_prompt_tokens,
            "cached_tokens": end.num_cached_tokens,
            "output_tokens": end.num_output_tokens,
            "preemptions": end.num_preemptions,
        }
        self._stay(end.name, end.arrival_time, end.end_time, facts)
        queued = end.end_time if end.admitted_time is None else end.admitted_time
        self._stay("queue", end.arrival_time, queued, {})
        if end.admitted_time is not None and end.first_token_time is not None:
            self._stay("prefill", end.admitted_time, end.first_token_time, {})
            self._stay("decode", end.first_token_time, end.last_token_time or end.end_time, {})

    def detokenized(self, seconds: float) -> None:
        self._inner.detokenized(seconds)
        self._span("detokenize", DETOKENIZER, self._clock() - seconds, seconds, {})

    def ended(self, story: Story) -> None:
        """One that was refused, or left, before it was tokenized: nothing is heard of it as `finished`."""
        self._inner.ended(story)
        if story.tokenized_time is None:
            self._num_requests += 1
            end = story.arrival_time if story.ended_time is None else story.ended_time
            self._stay(story.name, story.arrival_time, end, {"reason": story.finish_reason})

    def close(self) -> None:
        """The closing bracket. The file stays open."""
        self._file.write("[]\n" if self._separator == "[\n" else "\n]\n")

    def _span(self, name: str, thread: int, begin: float, seconds: float, args: dict[str, Any]) -> None:
        self._event("X", name, begin, tid=thread, dur=round(max(seconds, 0.0) * 1e6, 1), args=args)

    def _stay(self, name: str, begin: float, end: float, args: dict[str, Any]) -> None:
        """A request's, on a line of its own."""
        self._event("b", name, begin, cat="request", id=self._num_requests, args=args)
        self._event("e", name, end, cat="request", id=self._num_requests)

    def _event(self, phase: str, name: str, moment: float, **more: Any) -> None:
        self._write({"name": name, "ph": phase, "pid": 1, "ts": round((moment - self._start) * 1e6, 1), **more})

    def _write(self, event: dict[str, Any]) -> None:
        self._file.write(self._separator + json.dumps(event))
        self._separator = ",\n"


@contextmanager
def tracing(path: str | None, metrics: Metrics) -> Iterator[Observer]:
    """The observer to use: the metrics alone, or in front of them a trace that is written to `path`.

    Raises ConfigurationError where that cannot be written.
    """
    if path is None:
        yield metrics
        return
    try:
        file = open(path, "w", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise ConfigurationError(f"--trace {path} cannot be written: {error.strerror}.") from error
    with file:
        trace = Trace(file, metrics, trio.current_time)
        try:
            yield trace
        finally:
            trace.close()
