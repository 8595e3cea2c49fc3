"""`--otlp-traces-endpoint URL`: one OpenTelemetry span for each request, with its queue, prefill and decode inside it.

The event loop keeps a request's story and nothing more; spans are made of stories and sent by a worker thread, some at
a time. Nothing of it waits for a collector: what comes while one does not answer is kept up to QUEUED_MAX, and then
counted and dropped. A prompt or an answer is never in a span. The names of attributes are those of OpenTelemetry's
semantic conventions for generative AI, and vLLM's where it has others.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import trio

from ..engine.core.errors import ConfigurationError
from ..engine.core.events import FinishReason
from ..engine.core.params import SamplingParams
from ..engine.observer import NoObserver, Observer
from ..engine.story import Story

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, Tracer
    from opentelemetry.trace import Span

log = logging.getLogger(__name__)

MISSING = "--otlp-traces-endpoint needs OpenTelemetry, which is not installed: pip install 'triolet[otel]'."
QUEUED_MAX = 4096
"""Stories that wait to be sent: some seconds of the load that a machine can serve."""
BATCH = 64
"""Spans of so many requests are made at a time: a worker thread that runs Python holds the event loop up."""
GATHER_S = 1.0
SEND_TIMEOUT_S = 5.0
LAST_SEND_S = 3.0
"""How long the server's end waits for a collector."""
EVENTS_MAX = 32
"""Chunks, and preemptions, of a request that are told as events."""


@attrs.frozen(kw_only=True)
class TraceContext:
    """What a request came with, as its headers have it: the span that its own is to be a child of."""

    traceparent: str | None = None
    tracestate: str | None = None


@attrs.frozen(kw_only=True)
class SpanTag:
    """What a story does not know of its request."""

    context: TraceContext
    operation: str
    params: SamplingParams


class Spans(NoObserver):
    """In front of another observer. `run` sends; `close` sends the rest."""

    def __init__(self, endpoint: str, inner: Observer, *, version: str) -> None:
        """Raises ConfigurationError where OpenTelemetry is not installed."""
        self.model_name = ""
        self.num_dropped = 0
        """Requests whose spans were given up."""
        for name in ("first_token", "inter_token", "finished", "aborted", "step", "detokenized"):
            setattr(self, name, getattr(inner, name))
        self._inner = inner
        self._send_batch, self._give_up = _exporter(endpoint, version)
        self._queue: deque[Story] = deque()
        self._sending = trio.Lock()
        self._some = trio.Event()

    def ended(self, story: Story) -> None:
        self._inner.ended(story)
        if not isinstance(story.tag, SpanTag):
            return
        if len(self._queue) >= QUEUED_MAX:
            if not self.num_dropped:
                log.warning("the collector of traces does not keep up: spans are dropped")
            self.num_dropped += 1
            return
        self._queue.append(story)
        self._some.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._some.wait()
            await trio.sleep(GATHER_S)
            await self._send()

    async def close(self) -> None:
        """Send what there is, for LAST_SEND_S at most."""
        with trio.move_on_after(LAST_SEND_S) as scope:
            await self._send()
        if scope.cancelled_caught:
            self._give_up()
            log.warning("the spans of %d requests were not sent: the collector did not answer", len(self._queue))

    async def _send(self) -> None:
        async with self._sending:
            self._some = trio.Event()
            while self._queue:
                stories = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
                await trio.to_thread.run_sync(self._send_batch, stories, self.model_name, abandon_on_cancel=True)


def _exporter(endpoint: str, version: str) -> tuple[Callable[[list[Story], str], None], Callable[[], None]]:
    """What makes spans of stories and sends them, for a worker thread; and what ends that thread's further tries."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    except ImportError:
        raise ConfigurationError(MISSING) from None

    class Collected(SpanProcessor):
        """The spans that have ended, in a list."""

        def __init__(self) -> None:
            self.spans: list[ReadableSpan] = []

        def on_end(self, span: "ReadableSpan") -> None:
            self.spans.append(span)

    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=SEND_TIMEOUT_S)
    provider = TracerProvider(
        resource=Resource.create({"service.name": "triolet", "service.version": version}), shutdown_on_exit=False
    )
    collected = Collected()
    provider.add_span_processor(collected)
    tracer = provider.get_tracer("triolet", version)

    def send(stories: list[Story], model_name: str) -> None:
        for story in stories:
            _tell(tracer, story, model_name)  # type: ignore[arg-type]
        spans, collected.spans = collected.spans, []
        if spans:
            exporter.export(spans)

    return send, exporter.shutdown


def _tell(tracer: "Tracer", story: Story, model_name: str) -> None:
    """Make a request's span and those inside it. A parent that is not sampled has no children."""
    from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    assert isinstance(story.tag, SpanTag)
    carrier = {name: text for name, text in attrs.asdict(story.tag.context).items() if text is not None}
    at = _clock_of(story)
    end = story.ended_time if story.ended_time is not None else story.arrival_time
    span = tracer.start_span(
        f"{story.tag.operation} {model_name}",
        context=TraceContextTextMapPropagator().extract(carrier),
        kind=SpanKind.SERVER,
        attributes=attributes_of(story, model_name),
        start_time=at(story.arrival_time),
    )
    _tell_events(span, story, at)
    for name, begin, finish in _phases(story, end):
        child = tracer.start_span(name, context=set_span_in_context(span), start_time=at(begin))
        child.end(at(finish))
    if story.finish_reason in (FinishReason.ERROR, None):
        span.set_attribute("error.type", "error" if story.finish_reason else "refused")
        span.set_status(Status(StatusCode.ERROR))
    span.end(at(end))


def _clock_of(story: Story) -> Callable[[float], int]:
    """Moments of the trio clock as nanoseconds of Unix time."""
    return lambda moment: int((story.created + moment - story.arrival_time) * 1e9)


def _phases(story: Story, end: float) -> list[tuple[str, float, float]]:
    """What the request went through, as far as it came."""
    moments = (story.arrival_time, story.admitted_time, story.first_token_time)
    begun = [moment for moment in moments if moment is not None]
    last = end if story.last_token_time is None else story.last_token_time
    ends = [*begun[1:], last if len(begun) == len(moments) else end]
    return list(zip(("queue", "prefill", "decode")[: len(begun)], begun, ends, strict=True))


def _tell_events(span: "Span", story: Story, at: Callable[[float], int]) -> None:
    def tell(name: str, moment: float | None, **facts: str | int) -> None:
        if moment is not None:
            span.add_event(name, facts, timestamp=at(moment))

    tell("tokenized", story.tokenized_time, tokens=story.num_prompt_tokens or 0)
    tell("admitted", story.admitted_time, cached_tokens=story.num_cached_tokens)
    for moment, num_tokens in story.chunks[:EVENTS_MAX]:
        tell("chunk", moment, tokens=num_tokens)
    for moment, reason in story.preemptions[:EVENTS_MAX]:
        tell("preempted", moment, reason=str(reason))
    tell("first_token", story.first_token_time)


def attributes_of(story: Story, model_name: str) -> Mapping[str, Any]:
    """Of a request's span. Times in seconds."""
    assert isinstance(story.tag, SpanTag)
    params, since = story.tag.params, story.arrival_time
    arrival, admitted, first, last = since, story.admitted_time, story.first_token_time, story.last_token_time
    found: dict[str, Any] = {
        "gen_ai.operation.name": story.tag.operation,
        "gen_ai.provider.name": "triolet",
        "gen_ai.request.model": model_name,
        "gen_ai.response.model": model_name,
        "gen_ai.request.id": story.name,
        "gen_ai.response.id": story.name,
        "gen_ai.request.max_tokens": story.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.n": story.num_choices,
        "gen_ai.request.choice.count": story.num_choices,
        "gen_ai.request.seed": params.seed,
        "gen_ai.usage.prompt_tokens": story.num_prompt_tokens,
        "gen_ai.usage.input_tokens": story.num_prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": story.num_cached_tokens,
        "gen_ai.usage.completion_tokens": story.num_output_tokens,
        "gen_ai.usage.output_tokens": story.num_output_tokens,
        "gen_ai.latency.time_in_queue": _between(arrival, admitted),
        "gen_ai.latency.time_to_first_token": _between(arrival, first),
        "gen_ai.latency.e2e": _between(arrival, story.ended_time),
        "gen_ai.latency.time_in_model_prefill": _between(admitted, first),
        "gen_ai.latency.time_in_model_decode": _between(first, last),
        "gen_ai.latency.time_in_model_inference": _between(admitted, last),
        "triolet.preemptions": story.num_preemptions,
        "triolet.abort_reason": None if story.abort_reason is None else str(story.abort_reason),
    }
    if story.finish_reason is not None:
        found["gen_ai.response.finish_reasons"] = (str(story.finish_reason),)
    return {name: value for name, value in found.items() if value is not None}


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else end - begin
