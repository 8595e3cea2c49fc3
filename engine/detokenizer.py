"""The detokenizer actor: turns a step's tokens into text, watches for stop strings, fills the mailboxes.

Imports trio. It takes a whole step as one message and waits for nothing but its inbox: a slow reader finds a larger
delta later. An answer's text passes [tokens] ─▶ [decoder: whole characters] ─▶ [stop matcher] ─▶ [mailbox].

It publishes an answer's end when the scheduler has said Finished, and not before: the blocks are back. After a stop
string it asks the scheduler to end the answer, drops what still comes, and says `stop` when Finished is there. A
decoder that raises ends its own request as an error in the same way.
"""

import logging
from collections.abc import Callable
from typing import assert_never

import attrs
import trio

from .answer import Answer
from .core.errors import InvalidRequest, RequestFailed
from .core.events import Admitted, Finished, FinishReason, StepEvents
from .core.ids import RequestId, TokenId
from .core.logprobs import TokenLogprobs
from .inbox import Inbox
from .messages import Abort, DetokenizerMessage, Opened, SchedulerMessage
from .observer import AbortReason, Observer, RequestEnd
from .registry import OpenRequest, Registry, Stage
from .stream import SUPERSEDED

log = logging.getLogger(__name__)

DECODER_BROKE = "The answer could not be turned into text."
UNSAID = "The request failed inside the engine."


@attrs.define(eq=False)
class _Reading:
    """A request from Opened to its last Finished, and its answers by their choice."""

    request: OpenRequest
    answers: list[Answer]


class Detokenizer:
    """The owner of every request's decoders."""

    def __init__(
        self,
        inbox: Inbox[DetokenizerMessage],
        registry: Registry,
        scheduler_inbox: Inbox[SchedulerMessage],
        observer: Observer,
        *,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self._inbox = inbox
        self._registry = registry
        self._scheduler_inbox = scheduler_inbox
        self._observer = observer
        self._clock = clock
        self._readings: dict[RequestId, _Reading] = {}
        self.num_unread_tokens = 0
        """Counter: tokens that came when their answer was over or nobody read it any more."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._inbox.wait()
            now = self._clock()
            for message in self._inbox.drain():
                match message:
                    case Opened():
                        self._open(message)
                    case StepEvents():
                        self._step(message, now)
                        self._observer.detokenized(self._clock() - now)
                    case _:
                        assert_never(message)

    def _open(self, message: Opened) -> None:
        mailbox = message.request.mailbox
        answers = [Answer(mailbox, choice, decoder, message.params) for choice, decoder in enumerate(message.decoders)]
        self._readings[message.request.id] = _Reading(message.request, answers)

    def _step(self, events: StepEvents, now: float) -> None:
        readings = self._readings
        for preempted in events.preempted:
            readings[preempted.request].request.story.preempted(now, preempted.reason)
        for admitted in events.admitted:
            self._admit(admitted, now)
        for request_id, num_tokens in events.chunks:
            readings[request_id].request.story.chunk(now, num_tokens)
        for request_id, (_, entries) in events.prompt_logprobs:
            mailbox = readings[request_id].request.mailbox
            if not mailbox.closed:
                mailbox.prompt_logprobs += entries
        all_logprobs = events.logprobs or (None,) * len(events.requests)
        columns = (events.requests, events.token_ids, events.choices, all_logprobs)
        for request_id, token, choice, logprobs in zip(*columns, strict=True):
            reading = readings[request_id]
            self._take_token(reading.request, reading.answers[choice], token, logprobs, now)
        for finished in events.finished:
            self._finish(finished, now)

    def _admit(self, admitted: Admitted, now: float) -> None:
        request = self._readings[admitted.request].request
        request.num_cached_tokens = request.story.num_cached_tokens = admitted.num_cached_tokens
        request.story.admitted_time = now
        self._registry.move(request, Stage.ADMITTED, now)

    def _take_token(
        self, request: OpenRequest, answer: Answer, token: TokenId, logprobs: TokenLogprobs | None, now: float
    ) -> None:
        if answer.over or request.mailbox.closed:
            self.num_unread_tokens += 1  # after its stop string, or nobody reads
            return
        try:
            answer.push(token, logprobs)
        except Exception as error:
            self._break(request, error)
            return
        story = request.story
        story.last_token_time = now
        story.num_output_tokens += 1
        if answer.last_token_time is None:
            if story.first_token_time is None:
                story.first_token_time = now
            self._observer.first_token(now - request.arrival_time)
        else:
            self._observer.inter_token(now - answer.last_token_time, 1)
        answer.last_token_time = now
        if answer.stopped_by is not None and not request.aborted:
            self._scheduler_inbox.put(Abort(request=request.id, choice=answer.choice, reason=FinishReason.STOP))

    def _finish(self, finished: Finished, now: float) -> None:
        reading = self._readings[finished.request]
        request = reading.request
        if finished.last:
            del self._readings[finished.request]
            self._registry.move(request, Stage.ENDED, now)
        if finished.reason is FinishReason.ERROR and not request.mailbox.finished:
            message = finished.message or UNSAID
            refusal = InvalidRequest(message, param=finished.param)
            request.mailbox.fail(refusal if finished.refused else RequestFailed(message))
        if finished.never_admitted and not request.mailbox.finished:
            request.mailbox.fail(self._registry.not_admitted(request, now))
        self._end(request, reading.answers[finished.choice], finished)
        if finished.last:
            # Before the prompt is computed a request has one sequence: what ends that ends all its answers.
            for answer in reading.answers:
                if not answer.ended:
                    self._end(request, answer, attrs.evolve(finished, num_output_tokens=0))
            self._observe(reading, finished, now)

    def _end(self, request: OpenRequest, answer: Answer, finished: Finished) -> None:
        if not request.mailbox.closed:
            try:
                answer.flush(finished.end_token)
            except Exception as error:
                self._break(request, error)
        answer.finish(finished, aborted_by=request.aborted_by)

    def _break(self, request: OpenRequest, error: Exception) -> None:
        """The request fails: its reader learns it now, the scheduler at the next step boundary."""
        log.error("the answer of request %s could not be turned into text", request.name, exc_info=error)
        request.mailbox.fail(RequestFailed(DECODER_BROKE))
        if not request.aborted:
            request.aborted = True
            self._scheduler_inbox.put(Abort(request=request.id, reason=FinishReason.ERROR, message=DECODER_BROKE))

    def _observe(self, reading: _Reading, finished: Finished, now: float) -> None:
        request, story = reading.request, reading.request.story
        failed = request.mailbox.failed and not finished.never_admitted
        lengths = [answer.num_output_tokens for answer in reading.answers]
        end = RequestEnd(
            name=story.name,
            reason=FinishReason.ERROR if failed else reading.answers[0].reason,
            abort_reason=None if failed else _why_aborted(request, finished),
            arrival_time=request.arrival_time,
            admitted_time=story.admitted_time,
            first_token_time=story.first_token_time,
            last_token_time=story.last_token_time,
            end_time=now,
            num_prompt_tokens=request.num_prompt_tokens,
            num_cached_tokens=request.num_cached_tokens,
            num_output_tokens=sum(lengths),
            longest_answer=max(lengths),
            num_choices=len(lengths),
            max_tokens=story.max_tokens,
            num_preemptions=story.num_preemptions,
        )
        story.num_output_tokens = end.num_output_tokens
        story.ended(now, end.reason, end.abort_reason)
        self._observer.finished(end)
        if end.abort_reason is not None:
            self._observer.aborted(end.abort_reason, end.phase)


def _why_aborted(request: OpenRequest, finished: Finished) -> AbortReason | None:
    """None: it was not."""
    if finished.never_admitted:
        return AbortReason.QUEUE_TIME
    if finished.reason is FinishReason.TIMEOUT:
        return AbortReason.DEADLINE
    if finished.reason is not FinishReason.ABORT:
        return None
    if request.aborted_by == SUPERSEDED:
        return AbortReason.SUPERSEDED
    return AbortReason.LEFT if request.mailbox.closed else AbortReason.CANCELLED
