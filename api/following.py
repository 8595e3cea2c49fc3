"""One prompt's way through the engine, as part of the HTTP request that it belongs to."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import attrs
import trio

from ..engine.core.events import FinishReason
from ..engine.options import RequestOptions
from ..engine.stream import SUPERSEDED, Output, RequestStream
from .jobs import Job
from .lifecycle import OpenRequest
from .spans import SpanTag

if TYPE_CHECKING:
    from ..engine.engine import Engine

Take = Callable[[int, Output, RequestStream], Awaitable[None]]
"""Told the index of a choice among all of the HTTP request, what is new of it, and the stream that gave it."""


def _tag_of(job: Job) -> SpanTag | None:
    """What a span says of the job beside its story; None where there are none."""
    if job.terms.trace is None:
        return None
    return SpanTag(context=job.terms.trace, operation=job.operation, params=job.params)


class Follower:
    """The answers to one prompt of a job."""

    def __init__(self, engine: "Engine", job: Job, index: int, request: OpenRequest) -> None:
        self._engine = engine
        self._job = job
        self._index = index
        self._request = request
        self._name = job.request_id(index)

    async def run(
        self, take: Take, may_take: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Hand every output to `take`, once `may_take`, in a scope of the engine.

        Started: no refusal can come any more. Where its time in the queue is limited it is admitted then; without a
        limit it may still wait, so that a stream can begin, and ping, meanwhile.
        """
        job, request = self._job, self._request
        options = attrs.evolve(job.terms.options, label=job.label(self._index), tag=_tag_of(job))
        if self._index:
            options = attrs.evolve(options, supersede_key=None)  # The prompts of a request don't replace each other.
        request.on_end(self._end)
        async with self._enter(options) as stream:
            if request.ended_by is not None:
                self._end()  # It came before the engine knew the request.
            if options.max_queue_time_s is not None:
                await stream.admitted()
            task_status.started()
            await may_take.wait()
            first_choice = self._index * job.params.n
            async for output in stream:
                if output.finish_reason is FinishReason.ABORT:
                    if output.stop_reason == SUPERSEDED:
                        request.end(SUPERSEDED)
                    output = attrs.evolve(output, stop_reason=request.ended_by or output.stop_reason)
                await take(first_choice + output.choice, output, stream)

    def _enter(self, options: RequestOptions) -> AbstractAsyncContextManager[RequestStream]:
        job, prompt = self._job, self._job.prompts[self._index]
        if job.pooling is not None:
            return self._engine.embed(prompt, job.pooling, request_id=self._name, options=options)
        return self._engine.generate(prompt, job.params, request_id=self._name, options=options)

    def _end(self) -> None:
        """The request has been cancelled or superseded: the engine ends the answers, whatever stage they are in."""
        self._engine.abort(self._name)
