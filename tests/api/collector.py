"""A collector of OpenTelemetry spans: OTLP over HTTP on a port of 127.0.0.1, which keeps what it is sent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """What came. Silent, it takes connections and never answers."""

    def __init__(self) -> None:
        self.url = ""
        self.silent = False
        self.requests: list[ExportTraceServiceRequest] = []
        self.num_connections = 0
        self._came = trio.Event()

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def roots(self) -> list[Any]:
        """One for each request."""
        return [span for span in self.spans if span.kind == 2]  # SERVER

    def children(self, root: Any) -> list[Any]:
        return [span for span in self.spans if span.parent_span_id == root.span_id]

    async def wait_for(self, num_roots: int) -> None:
        while len(self.roots()) < num_roots:
            await self._came.wait()

    async def wait_for_connection(self) -> None:
        while not self.num_connections:
            await self._came.wait()

    def _moved(self) -> None:
        self._came.set()
        self._came = trio.Event()

    async def _serve(self, stream: trio.SocketStream) -> None:
        self.num_connections += 1
        self._moved()
        data = b""
        async for part in stream:
            data += part
            head, found, body = data.partition(b"\r\n\r\n")
            if self.silent or not found:
                continue
            length = next(
                int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
            )
            if len(body) >= length:
                self.requests.append(ExportTraceServiceRequest.FromString(body[:length]))
                data = body[length:]
                await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                self._moved()


def facts(span: Any) -> dict[str, Any]:
    """A span's attributes."""
    found = {}
    for attribute in span.attributes:
        kind = attribute.value.WhichOneof("value")
        value = getattr(attribute.value, kind)
        found[attribute.key] = [entry.string_value for entry in value.values] if kind == "array_value" else value
    return found


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """A collector for as long as the scope lasts."""
    collector = Collector()
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, collector._serve, 0)
        collector.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/v1/traces"
        yield collector
        nursery.cancel_scope.cancel()
