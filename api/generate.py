"""The routes that generate (`generating.py`): raw ASGI, for the sake of lifetimes.

For each HTTP request there is one nursery. A watcher parked in `receive()` cancels it when the client leaves; leaving
the scope of `engine.generate` takes the request out of the engine, synchronously. Nothing here needs cleaning up.

    request's nursery            cancelled when the client is gone
    ├── watcher                  sits in receive()
    └── OpenRequest.scope        cancelled when the server wants it to end; the client still hears why
        ├── keep-alive           comments while a stream is quiet
        └── followers            one for each prompt, in `async with engine.generate(...)`

A background request's OpenRequest.scope moves to the server's nursery once the engine has it, and outlives its client.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio

from ..engine.core.errors import TrioletError
from ..engine.stream import Output, RequestStream
from .answers import Answer, usage_of, whole_body
from .body import Receive
from .dialect import OPENAI, Dialect
from .errors import leaf_error
from .following import Follower
from .gate import CALLER
from .jobs import Job
from .lifecycle import OpenRequest
from .reply import Reply, Send
from .service import Service
from .terms import Envelope, new_request_id

log = logging.getLogger(__name__)


class GenerateRoute:
    """Answers one route; `make_job` reads its body, `dialect` says what is wrong with it."""

    def __init__(
        self, service: Service, make_job: Callable[[Service, bytes, Envelope], Job], dialect: Dialect = OPENAI
    ) -> None:
        self._service = service
        self._lifecycle = service.lifecycle
        self._make_job = make_job
        self._dialect = dialect

    async def __call__(self, scope: dict[str, Any], body: bytes, receive: Receive, send: Send) -> None:
        envelope = Envelope(headers=scope["headers"], caller=scope[CALLER].identity, arrival_time=trio.current_time())
        request_id = envelope.request_id or new_request_id()
        reply = Reply(send, request_id=request_id, id_headers=self._dialect.id_headers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_gone, receive, nursery.cancel_scope)
            await self._answer(body, envelope, reply)
            nursery.cancel_scope.cancel()

    async def _answer(self, body: bytes, envelope: Envelope, reply: Reply) -> None:
        outcome = "gone"
        job: Job | None = None
        try:
            job = self._make_job(self._service, body, envelope)
            terms = job.terms
            reply.request_id = terms.request_id
            if job.background is not None:
                assert self._service.background is not None
                await reply.json(200, await self._service.background.start(self._run_behind, job, job.background))
                outcome = "goes on"
            else:
                with self._lifecycle.request(terms.request_id, caller=terms.caller) as request, job.hold(request):
                    await self._run(job, request, reply)
                outcome = request.ended_by or "done"
        except Exception as error:
            outcome = error.code or error.type if isinstance(error, TrioletError) else "server_error"
            await self._fail(job, error, reply)
        finally:
            if log.isEnabledFor(logging.DEBUG):
                seconds = trio.current_time() - envelope.arrival_time
                log.debug("request %s %s after %.3f s", reply.request_id, outcome, seconds)

    async def _fail(self, job: Job | None, error: Exception, reply: Reply) -> None:
        """Tell the client, in whichever way is still open: a status, or the end of the stream."""
        told = self._dialect.http(error if job is None else self._dialect.renamed(error))
        last_words = b"" if job is None else job.format.failure(told)
        if reply.streaming:
            await reply.end(last_words)
        else:
            await reply.json(told.status, self._dialect.body(told), told.headers)

    async def _run(self, job: Job, request: OpenRequest, reply: Reply) -> None:
        answers = _answers(job)
        if job.stream:
            await _within(request, partial(self._stream, job, request, answers, reply))
        else:
            await _within(request, partial(self._collect, job, request, answers))
        usage = usage_of(answers, num_choices=job.params.n)
        if job.stream:
            await reply.end(job.format.closing(usage, include_usage=job.include_usage))
        else:
            await reply.json(200, await whole_body(job.format, answers, usage))

    async def _run_behind(
        self, job: Job, accepted: Callable[[], bytes], *, task_status: trio.TaskStatus[bytes]
    ) -> None:
        """Without a client. Once started, with what its client is told, it ends with the server at the latest; what
        becomes of it is the format's to keep. Raises nothing then."""
        answers = _answers(job)
        is_started = False

        def start() -> None:
            nonlocal is_started
            is_started = True
            task_status.started(accepted())

        try:
            with self._lifecycle.request(job.terms.request_id, caller=job.terms.caller) as request, job.hold(request):
                await _within(request, partial(self._collect, job, request, answers, start))
                await whole_body(job.format, answers, usage_of(answers, num_choices=job.params.n))
        except Exception as error:
            if not is_started:
                raise
            job.format.failure(self._dialect.http(self._dialect.renamed(error)))

    async def _stream(self, job: Job, request: OpenRequest, answers: list[Answer], reply: Reply) -> None:
        """Every prompt is in the engine before the response starts, so that a refusal is still a status of its own."""
        may_send = trio.Event()

        async def take(index: int, output: Output, stream: RequestStream) -> None:
            answer = answers[index]
            data = job.format.delta(answer, answer.take(output, stream, keep=False))
            if data:
                answer.told = True
                await reply.event(data)

        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as following:
                for index in range(len(job.prompts)):
                    await following.start(Follower(self._service.engine, job, index, request).run, take, may_send)
                await reply.start_stream()
                if opening := job.format.opening():
                    await reply.event(opening)
                nursery.start_soon(reply.keep_alive, self._service.config.ping_interval, self._dialect.ping)
                may_send.set()
            nursery.cancel_scope.cancel()

    async def _collect(
        self, job: Job, request: OpenRequest, answers: list[Answer], accepted: Callable[[], None] | None = None
    ) -> None:
        may_take = trio.Event()
        may_take.set()

        async def take(index: int, output: Output, stream: RequestStream) -> None:
            output = answers[index].take(output, stream, keep=not job.tells_format)
            if job.tells_format:
                job.format.delta(answers[index], output)

        turns = trio.Semaphore(job.at_once)

        async def follow(index: int, *, task_status: trio.TaskStatus[None]) -> None:
            try:
                follower = Follower(self._service.engine, job, index, request)
                await follower.run(take, may_take, task_status=task_status)
            finally:
                turns.release()

        async with trio.open_nursery() as following:
            for index in range(len(job.prompts)):
                await turns.acquire()
                await following.start(follow, index)
            if accepted is not None:
                accepted()


def _answers(job: Job) -> list[Answer]:
    indexes = range(job.num_choices)
    return [Answer(index=index, prompt_only=job.prompt_only, parsing=job.parsing) for index in indexes]


async def _within(request: OpenRequest, follow: Callable[[], Awaitable[None]]) -> None:
    """Run what generates in the request's scope, and raise the one error that its client should hear of."""
    try:
        with request.scope:
            await follow()
    except BaseExceptionGroup as group:
        error = leaf_error(group)
        if error is None:
            raise
        raise error from None
    if request.error is not None and request.scope.cancelled_caught:
        raise request.error.with_traceback(None)


async def _cancel_when_gone(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
