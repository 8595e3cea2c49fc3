"""POST /v1/chat/completions and /v1/completions: raw ASGI, for the sake of lifetimes.

For each HTTP request there is one nursery. A watcher parked in `receive()` cancels it when the client leaves; leaving
the scope of `engine.generate` takes the request out of the engine, synchronously. Nothing here needs cleaning up.

    request's nursery            cancelled when the client is gone
    ├── watcher                  sits in receive()
    └── OpenRequest.scope        cancelled when the server wants it to end; the client still hears why
        ├── keep-alive           comments while a stream is quiet
        └── followers            one for each prompt, in `async with engine.generate(...)`
"""

import logging
import re
import uuid
from collections.abc import Callable
from typing import Any

import trio

from ..engine.core.errors import TrioletError
from .answers import Answer, usage_of
from .body import Receive, header
from .errors import as_http, leaf_error
from .jobs import Job
from .lifecycle import OpenRequest
from .reply import DONE, Reply, Send
from .service import Service

log = logging.getLogger(__name__)

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class GenerateRoute:
    """Answers one route; `make_job` reads its body."""

    def __init__(self, service: Service, make_job: Callable[[Service, bytes], Job]) -> None:
        self._service = service
        self._make_job = make_job

    async def __call__(self, scope: dict[str, Any], body: bytes, receive: Receive, send: Send) -> None:
        given = header(scope["headers"], b"x-request-id") or b""
        name = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex.encode()
        reply = Reply(send, [(b"x-request-id", name)])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_gone, receive, nursery.cancel_scope)
            await self._answer(body, reply, name)
            nursery.cancel_scope.cancel()

    async def _answer(self, body: bytes, reply: Reply, name: bytes) -> None:
        started_s = trio.current_time()
        outcome = "gone"
        try:
            job = self._make_job(self._service, body)
            with self._service.lifecycle.request(job.id) as request:
                await self._run(job, request, reply)
            outcome = "done"
        except Exception as error:
            outcome = error.code or error.type if isinstance(error, TrioletError) else "server_error"
            await reply.fail(as_http(error))
        finally:
            if log.isEnabledFor(logging.DEBUG):
                log.debug("request %s %s after %.3f s", name.decode(), outcome, trio.current_time() - started_s)

    async def _run(self, job: Job, request: OpenRequest, reply: Reply) -> None:
        answers = [Answer() for _ in job.prompts]
        try:
            with request.scope:
                await (self._stream(job, answers, reply) if job.stream else self._collect(job, answers))
        except BaseExceptionGroup as group:
            error = leaf_error(group)
            if error is None:
                raise
            raise error from None
        if request.error is not None and request.scope.cancelled_caught:
            raise request.error.with_traceback(None)
        if job.stream:
            usage = job.format.usage(usage_of(answers)) if job.include_usage else b""
            await reply.end(usage + DONE)
        else:
            await reply.json(200, job.format.whole(answers))

    async def _stream(self, job: Job, answers: list[Answer], reply: Reply) -> None:
        """Every prompt has its stream before the response starts, so that a refusal is still a status of its own."""
        may_send = trio.Event()

        async def follow(index: int, *, task_status: trio.TaskStatus[None]) -> None:
            async with self._service.engine.generate(
                job.prompts[index], job.params, request_id=job.request_id(index)
            ) as stream:
                task_status.started()
                await may_send.wait()
                first = True
                async for output in stream:
                    answers[index].take(output, keep_text=False)
                    data = job.format.delta(index, output, first=first)
                    if data:
                        first = False
                        await reply.event(data)

        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as followers:
                for index in range(len(job.prompts)):
                    await followers.start(follow, index)
                await reply.start_stream()
                nursery.start_soon(reply.keep_alive, self._service.config.ping_interval)
                may_send.set()
            nursery.cancel_scope.cancel()

    async def _collect(self, job: Job, answers: list[Answer]) -> None:
        async def follow(index: int, *, task_status: trio.TaskStatus[None]) -> None:
            async with self._service.engine.generate(
                job.prompts[index], job.params, request_id=job.request_id(index)
            ) as stream:
                task_status.started()
                async for output in stream:
                    answers[index].take(output, keep_text=True)

        async with trio.open_nursery() as followers:
            for index in range(len(job.prompts)):
                await followers.start(follow, index)


async def _cancel_when_gone(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
