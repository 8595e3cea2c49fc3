"""OpenTelemetry: a span for each request, from the real server and engine to a collector on a real socket."""

import sys
import threading
from collections.abc import Sequence

import httpx
import pytest
import trio
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from tests.contract.stage import Stage, staged, until
from triolet.api import spans as spans_module
from triolet.api.config import ServerConfig
from triolet.api.spans import MISSING, Spans, SpanTag, TraceContext
from triolet.engine.core.errors import ConfigurationError
from triolet.engine.core.params import SamplingParams
from triolet.engine.observer import NoObserver
from triolet.engine.story import Story

from ..limits import REAL_LIMIT_S
from .collector import Collector, collecting, facts

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is gathered before it is sent, and the last of it has all the time that a slow machine takes."""
    monkeypatch.setattr(spans_module, "GATHER_S", 0.0)
    monkeypatch.setattr(spans_module, "LAST_SEND_S", REAL_LIMIT_S)


async def complete(stage: Stage, body: dict[str, object], **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=None) as client:
        return await client.post(f"http://127.0.0.1:{stage.port}/v1/completions", json=body, headers=headers)


def tree_of(collector: Collector) -> tuple[object, dict[str, object]]:
    """The one request's span, and those inside it."""
    (root,) = collector.roots()
    return root, {span.name: span for span in collector.children(root)}


async def test_a_request_is_a_span_with_its_phases_in_it() -> None:
    """The trace and the parent are those of its `traceparent`; attributes have OpenTelemetry's and vLLM's names."""
    async with collecting() as collector, staged(step_freely=True, otlp_traces_endpoint=collector.url) as stage:
        body = {"prompt": "hello you\n", "max_tokens": 20, "temperature": 0.5, "seed": 7}
        context = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"}
        assert (await complete(stage, body, **context)).status_code == 200
        await collector.wait_for(1)
    root, inside = tree_of(collector)
    assert (root.trace_id.hex(), root.parent_span_id.hex(), root.name) == (TRACE, PARENT, "text_completion echo")
    said = facts(root)
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "triolet",
        "gen_ai.request.model": "echo",
        "gen_ai.request.id": "mine",
        "gen_ai.request.max_tokens": 20,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.request.n": 1,
        "gen_ai.usage.prompt_tokens": 10,
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.completion_tokens": 10,
        "gen_ai.usage.output_tokens": 10,
        "gen_ai.response.finish_reasons": ["stop"],
    }
    assert {name: said.get(name) for name in expected} == expected
    assert list(inside) == ["queue", "prefill", "decode"]
    assert root.start_time_unix_nano == inside["queue"].start_time_unix_nano
    assert inside["queue"].end_time_unix_nano == inside["prefill"].start_time_unix_nano
    assert inside["prefill"].end_time_unix_nano == inside["decode"].start_time_unix_nano
    assert inside["decode"].end_time_unix_nano <= root.end_time_unix_nano
    parts = [said[f"gen_ai.latency.{name}"] for name in ("time_in_queue", "time_in_model_prefill")]
    assert sum(parts) == pytest.approx(said["gen_ai.latency.time_to_first_token"])
    assert [event.name for event in root.events] == ["tokenized", "admitted", "chunk", "first_token"]
    assert "hello" not in str(collector.spans)


async def test_a_client_that_left_has_a_span_too() -> None:
    """It says how far the request came, and why it ended; without a traceparent it begins a trace of its own."""
    async with collecting() as collector, staged(otlp_traces_endpoint=collector.url) as stage:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(complete, stage, {"prompt": "hello you\n", "max_tokens": 20})
                await until(lambda: stage.num_plans)
                scope.cancel()
        await until(lambda: not stage.num_open)
        await stage.step()
        await collector.wait_for(1)
    root, inside = tree_of(collector)
    assert not root.parent_span_id
    assert list(inside) == ["queue", "prefill"]
    assert facts(root)["gen_ai.response.finish_reasons"] == ["abort"]
    assert facts(root)["triolet.abort_reason"] == "left"


async def test_what_is_refused_is_an_error_and_what_is_not_sampled_is_not_sent() -> None:
    """A prompt that is too long has a span with the status ERROR; a parent with the flag 00 has no child."""
    async with collecting() as collector, staged(step_freely=True, otlp_traces_endpoint=collector.url) as stage:
        unsampled = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
        assert (await complete(stage, {"prompt": "hi\n", "max_tokens": 2}, **unsampled)).status_code == 200
        malformed = {"traceparent": "00-zz", "tracestate": "x" * 1000}
        assert (await complete(stage, {"prompt": "x" * 300}, **malformed)).status_code == 400
        await collector.wait_for(1)
    root, inside = tree_of(collector)
    assert (root.status.code, facts(root)["error.type"], list(inside)) == (2, "refused", ["queue"])
    assert root.trace_id.hex() != TRACE


async def test_the_last_spans_are_sent_before_the_server_ends() -> None:
    """Whoever is being answered when it stops is in them."""
    async with collecting() as collector:
        async with staged(otlp_traces_endpoint=collector.url) as stage, trio.open_nursery() as nursery:
            nursery.start_soon(complete, stage, {"prompt": "hello you\n", "max_tokens": 20})
            await until(lambda: stage.num_plans)
            stage.run.stop.set()
        assert len(collector.roots()) == 1


async def test_a_collector_that_is_silent_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are answered, what is kept for it is bounded and counted, and the server ends; nothing is sent again."""
    ended = threading.Event()
    export = OTLPSpanExporter.export

    def export_and_tell(self: OTLPSpanExporter, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = export(self, spans)
        ended.set()
        return result

    monkeypatch.setattr(OTLPSpanExporter, "export", export_and_tell)
    monkeypatch.setattr(spans_module, "QUEUED_MAX", 2)
    monkeypatch.setattr(spans_module, "LAST_SEND_S", 0.05)
    async with collecting() as collector:
        collector.silent = True
        async with staged(step_freely=True, otlp_traces_endpoint=collector.url) as stage:
            assert (await complete(stage, {"prompt": "hi\n", "max_tokens": 2})).status_code == 200
            await collector.wait_for_connection()
            for _ in range(5):
                assert (await complete(stage, {"prompt": "hi\n", "max_tokens": 2})).status_code == 200
            spans = stage.run.spans
            assert spans is not None
            await until(lambda: spans.num_dropped == 3)
        assert stage.status == [0]
    await until(ended.is_set)
    assert collector.num_connections == 1


async def test_no_flag_no_spans() -> None:
    """Without an endpoint nothing is kept of a request for them."""
    async with staged(step_freely=True) as stage:
        assert (await complete(stage, {"prompt": "hi\n"}, traceparent=f"00-{TRACE}-{PARENT}-01")).status_code == 200
        assert stage.run.spans is None
        assert stage.engine.stories()[0].tag is None


def test_what_is_missing_or_mistaken_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library, how to install it; with gRPC's URL, which one it takes."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigurationError) as caught:
        Spans("http://127.0.0.1:1/v1/traces", NoObserver(), version="1")
    assert caught.value.message == MISSING
    with pytest.raises(ConfigurationError) as caught:
        ServerConfig(otlp_traces_endpoint="grpc://localhost:4317")
    expected = "--otlp-traces-endpoint takes the URL of OTLP over HTTP (http://…), not 'grpc://localhost:4317'."
    assert caught.value.message == expected


async def test_long_stories_have_few_events() -> None:
    """Of a thousand chunks thirty-two are told."""
    tag = SpanTag(context=TraceContext(), operation="chat", params=SamplingParams())
    story = Story(name="long", arrival_time=0.0, created=1_700_000_000.0, tag=tag)
    story.tokenized(0.5, num_tokens=1000, max_tokens=1)
    story.admitted_time = 1.0
    for number in range(1000):
        story.chunk(1.0 + number, 1)
    story.ended(2000.0, None, None)
    async with collecting() as collector:
        spans = Spans(collector.url, NoObserver(), version="1")
        spans.ended(story)
        await spans.close()
        (root,) = collector.roots()
    assert [event.name for event in root.events].count("chunk") == 32
    assert root.end_time_unix_nano == 1_700_002_000_000_000_000
