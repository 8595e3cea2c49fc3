"""One prompt's way through the engine, as seen by the HTTP request that it belongs to.

It adds to `engine.generate` that it can be ended from outside in every stage: while its prompt is tokenized nothing of
it is in the engine yet, and its answers' ends are made here; afterwards the engine is told, and its own ends come.
"""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import attrs
import trio

from ..engine.core.events import FinishReason
from ..engine.stream import Output
from .jobs import Job
from .lifecycle import OpenRequest

if TYPE_CHECKING:
    from ..engine.engine import Engine

Take = Callable[[int, Output], Awaitable[None]]
"""Told the index of a choice among all of the HTTP request, and what is new of it."""


class Follower:
    """The answers to one prompt of a job. `run` owns the request inside the engine."""

    def __init__(self, engine: "Engine", job: Job, index: int, request: OpenRequest) -> None:
        self._engine = engine
        self._job = job
        self._index = index
        self._request = request
        self._name = job.request_id(index)
        self._entering = trio.CancelScope(deadline=_or_never(job.terms.deadline))
        self.begun = trio.Event()
        """It has an output, or has ended: it was admitted, if it ever will be."""

    async def run(
        self, take: Take, may_take: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Hand every output to `take`, in a scope of `engine.generate`. Started: the engine has taken the request, and
        no refusal can come any more but that of its time in the queue. The first output waits for `may_take`."""
        self._request.on_end(self._end)
        async with AsyncExitStack() as stack:
            with self._entering:
                stream = await stack.enter_async_context(
                    self._engine.generate(
                        self._job.prompts[self._index],
                        self._job.params,
                        request_id=self._name,
                        options=self._job.terms.options,
                    )
                )
            task_status.started()
            if self._entering.cancelled_caught:
                self.begun.set()
                await may_take.wait()
                await self._end_unseen(take)
                return
            if self._request.ended_by is not None:  # it came too early for the engine, and too late for the scope
                self._engine.abort(self._name)
            first_choice = self._index * self._job.params.n
            async for output in stream:
                self.begun.set()
                await may_take.wait()
                if output.finish_reason is FinishReason.ABORT and self._request.ended_by is not None:
                    output = attrs.evolve(output, stop_reason=self._request.ended_by)
                await take(first_choice + output.choice, output)

    def _end(self) -> None:
        """The request has been cancelled or superseded."""
        if not self._engine.abort(self._name):
            self._entering.cancel()  # Without effect once it has been left: the answers have ended by themselves.

    async def _end_unseen(self, take: Take) -> None:
        """The ends of answers that the engine knows nothing of."""
        ended_by = self._request.ended_by
        reason = FinishReason.TIMEOUT if ended_by is None else FinishReason.ABORT
        num_choices = self._job.params.n
        for choice in range(num_choices):
            output = Output(
                choice=choice,
                text="",
                token_ids=(),
                finish_reason=reason,
                stop_reason=ended_by,
                num_prompt_tokens=0,
                num_cached_tokens=0,
                num_output_tokens=0,
            )
            await take(self._index * num_choices + choice, output)


def _or_never(deadline: float | None) -> float:
    return float("inf") if deadline is None else deadline
