"""The engine's front door for async Python: `Engine.generate`, the only way to run a request.

Imports trio. An Engine is made by `open_engine` and is good inside that scope. A request lives in the scope of
`generate`: leaving it for whatever reason (done, break, exception, cancellation) synchronously appends an Abort to the
scheduler's inbox. No await is needed to clean up, so nothing can cut the clean-up short.
"""

import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import cast

import attrs
import trio

from .controls import Controls
from .core.errors import EngineDead, Overloaded
from .core.events import FinishReason
from .core.ids import TokenId
from .core.params import MAX_LOGPROBS, LogprobsLimit, SamplingParams
from .core.pooling import Pooling
from .core.request import Request
from .grammar import GrammarClient
from .inbox import Inbox
from .inside import Inside
from .mailbox import End
from .messages import Abort, DetokenizerMessage, Opened, SchedulerMessage, Submit
from .observer import AbortReason, NoObserver, Observer, Phase
from .options import DEFAULT_OPTIONS, RequestOptions
from .prompt import Prompt, as_prompt, check_ids, check_length, estimate_num_tokens, fit_params, prompt_param
from .registry import OpenRequest, Registry, Stage
from .stats import NO_FACTS, CacheFacts, EngineStats
from .story import Story
from .stream import SUPERSEDED, RequestStream
from .tokenizer import TokenizerClient


@attrs.frozen(kw_only=True)
class EngineFacts:
    """What an engine says about itself, and what it checks requests against."""

    model_name: str
    max_model_len: int
    vocab_size: int
    max_num_seqs: int
    end_token_ids: tuple[TokenId, ...] = ()
    seed: int = 0
    max_logprobs: int = MAX_LOGPROBS
    cache: CacheFacts = NO_FACTS
    hidden_size: int | None = None
    """Numbers in a vector; None: not known, and not checked."""
    created: int = attrs.field(factory=lambda: int(time.time()))
    """Unix time."""


class Engine:
    """Runs requests. Everything here belongs to the task tree of `open_engine`, in the event loop's thread."""

    def __init__(
        self,
        facts: EngineFacts,
        *,
        tokenizer: TokenizerClient,
        grammars: GrammarClient,
        registry: Registry,
        scheduler_inbox: Inbox[SchedulerMessage],
        detokenizer_inbox: Inbox[DetokenizerMessage],
        read_stats: Callable[[], EngineStats],
        controls: Controls,
        inside: Inside,
        read_stuck: Callable[[], str | None] = lambda: None,
        observer: Observer | None = None,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self.tokenizer = tokenizer
        self.controls = controls
        self.inside = inside
        self.grammars = grammars
        self._facts = facts
        self._registry = registry
        self._scheduler_inbox = scheduler_inbox
        self._detokenizer_inbox = detokenizer_inbox
        self._read_stats = read_stats
        self._read_stuck = read_stuck
        self._observer: Observer = observer if observer is not None else NoObserver()
        self._clock = clock
        self._seeds = random.Random(facts.seed)
        self._death: tuple[str, BaseException | None] | None = None

    @property
    def model_name(self) -> str:
        return self._facts.model_name

    @property
    def max_model_len(self) -> int:
        """Most tokens of a request, prompt and answer together."""
        return self._facts.max_model_len

    @property
    def logprobs_limit(self) -> LogprobsLimit:
        """How many rivals of a token a request may ask for."""
        return LogprobsLimit(self._facts.max_logprobs, self._facts.vocab_size)

    @property
    def created(self) -> int:
        """When the engine was made, in Unix time."""
        return self._facts.created

    @property
    def health(self) -> str | None:
        """None while the engine works, else the reason why it does not: it is dead, or a step hangs (then the reason
        says which shapes were in it, and goes when the step lands or the device has been replaced)."""
        return self._read_stuck() if self._death is None else self._death[0]

    def overload(self) -> Overloaded | None:
        """What any request that came now would be refused with; None while the queue has room for one more."""
        return self._registry.refusal(self._clock()) if self._death is None else None

    def stats(self) -> EngineStats:
        return self._read_stats()

    def stories(self, name: str | None = None) -> list[Story]:
        """What became of the requests that are open and of the last that ended, the newest first; `name`: of those that
        a client called so."""
        return [story for story in self._registry.stories() if name is None or story.name == name]

    def generate(
        self,
        prompt: Prompt | str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> AbstractAsyncContextManager[RequestStream]:
        """A scope that runs one request and gives its stream. See `Generation` for what entering it may raise."""
        return Generation(self, as_prompt(prompt), params or SamplingParams(), request_id, options)

    def embed(
        self,
        prompt: Prompt | str | Sequence[int],
        pooling: Pooling | None = None,
        *,
        request_id: str | None = None,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> AbstractAsyncContextManager[RequestStream]:
        """A scope that turns a prompt into a vector, and gives a stream of one output: `Output.vector`.

        A request as any other: scheduled, cancelled at the next step boundary, ended by its deadline (then, and when it
        is aborted, the output has no vector). A vector of the last token takes what the prefix cache has; a mean needs
        the states of all positions, so its prompt is computed whole. Both leave their blocks to the cache.
        """
        return Generation(
            self, as_prompt(prompt), SamplingParams(max_tokens=1), request_id, options, pooling or Pooling()
        )

    def check_pooling(self, pooling: Pooling) -> None:
        """Raises InvalidRequest where the model has fewer dimensions."""
        if self._facts.hidden_size is not None:
            pooling.check(self._facts.hidden_size)

    def abort(self, request_id: str) -> bool:
        """End an open request by the name its client knows, from anywhere: its reader gets the text so far and the
        finish reason `abort`. False: there is no such request, or it has ended."""
        request = self._registry.named(request_id)
        return request is not None and self._abort(request)

    # For Generation and the supervisor.

    def _enter(self, request_id: str | None, prompt: Prompt, num_choices: int, options: RequestOptions) -> OpenRequest:
        if self._death is not None:
            raise self._dead()
        now = self._clock()
        request = self._registry.enter(request_id, now, num_choices=num_choices, num_tokens=estimate_num_tokens(prompt))
        if options.label is not None:
            request.story.name = options.label
        request.story.tag = options.tag
        if options.supersede_key is not None:
            older = self._registry.supersede(request, options.supersede_key)
            if older is not None:
                self._abort(older, by=SUPERSEDED)
        request.tokenizing.deadline = min(_moment(options.deadline), _admit_by(request, options))
        return request

    def _abort(self, request: OpenRequest, *, by: str | None = None) -> bool:
        """The reader stays and is told."""
        if request.aborted or request.stage is Stage.ENDED:
            return False
        request.aborted, request.aborted_by = True, by
        if request.stage is Stage.TOKENIZING:
            request.tokenizing.cancel()
        else:
            self._scheduler_inbox.put(Abort(request=request.id))
        return True

    def _end_before_submit(self, request: OpenRequest, num_choices: int, options: RequestOptions) -> None:
        """It was aborted, or its time is over, while it was tokenized: the scheduler never hears of it."""
        if self._death is not None:
            raise self._dead()
        now = self._clock()
        late = not request.aborted and _admit_by(request, options) <= _moment(options.deadline)
        self._end_early(request, _why_early(request, late=late))
        if late:
            raise self._registry.not_admitted(request, now)
        end = End(
            reason=FinishReason.ABORT if request.aborted else FinishReason.TIMEOUT, stop_reason=request.aborted_by
        )
        for choice in range(num_choices):
            request.mailbox.finish(end, choice)
        self._registry.move(request, Stage.ENDED, now)

    def _end_early(self, request: OpenRequest, why: AbortReason) -> None:
        late = why in (AbortReason.DEADLINE, AbortReason.QUEUE_TIME)
        request.story.ended(self._clock(), FinishReason.TIMEOUT if late else FinishReason.ABORT, why)
        self._observer.aborted(why, Phase.TOKENIZING)

    def _submit(
        self,
        request: OpenRequest,
        token_ids: tuple[int, ...],
        params: SamplingParams,
        options: RequestOptions,
        param: str,
        pooling: Pooling | None,
    ) -> None:
        if self._death is not None:
            raise self._dead()
        limit = self.max_model_len
        check_length(len(token_ids), max_model_len=limit, param=param, answered=pooling is None)
        if pooling is None:
            params = fit_params(
                params,
                num_prompt_tokens=len(token_ids),
                max_model_len=limit,
                max_num_seqs=self.controls.settings.max_num_seqs,
            )
        if params.bad_words:
            bad_words = self.tokenizer.bad_word_token_ids(params.bad_words)
            params = attrs.evolve(params, bad_word_token_ids=params.bad_word_token_ids + bad_words)
        params = self.logprobs_limit.apply(params)
        if params.thinking is not None:
            params = attrs.evolve(params, thinking=params.thinking.behind(self.tokenizer.last_words(token_ids)))
        check_ids(params, vocab_size=self._facts.vocab_size)
        skip = params.skip_special_tokens
        decoders = tuple(self.tokenizer.incremental(token_ids, skip_special_tokens=skip) for _ in range(params.n))
        seed = params.seed if params.seed is not None else self._seeds.getrandbits(64) - 2**63
        now = self._clock()
        request.story.tokenized(now, num_tokens=len(token_ids), max_tokens=params.max_tokens)
        self._registry.count_tokens(request, len(token_ids))
        self._registry.move(request, Stage.WAITING, now)
        self._detokenizer_inbox.put(Opened(request=request, params=params, decoders=decoders))
        self._scheduler_inbox.put(
            Submit(
                request=Request(
                    id=request.id,
                    prompt_token_ids=cast(tuple[TokenId, ...], token_ids),
                    params=params,
                    seed=seed,
                    pooling=pooling,
                    end_token_ids=self._facts.end_token_ids,
                    arrival_time=request.arrival_time,
                    priority=options.priority,
                    fairness_key=options.fairness_key,
                    deadline=options.deadline,
                    admit_by=None if options.max_queue_time_s is None else _admit_by(request, options),
                    extra_keys=options.extra_keys,
                )
            )
        )

    def _leave(self, request: OpenRequest) -> None:
        if self._registry.leave(request, self._clock()):
            self._scheduler_inbox.put(Abort(request=request.id))

    def _die(self, reason: str, cause: BaseException | None = None) -> EngineDead:
        """No request comes in any more; each open one gets its one terminal event. The first reason stays."""
        if self._death is None:
            self._death = (reason, cause)
        self._registry.fail_all(self._dead, self._clock())
        return self._dead()

    def _dead(self) -> EngineDead:
        """An error of its own for everyone: one that several tasks raise would collect all their tracebacks."""
        assert self._death is not None
        reason, cause = self._death
        error = EngineDead(reason)
        error.__cause__ = cause
        return error


def _why_early(request: OpenRequest, *, late: bool) -> AbortReason:
    if request.aborted:
        return AbortReason.SUPERSEDED if request.aborted_by == SUPERSEDED else AbortReason.CANCELLED
    return AbortReason.QUEUE_TIME if late else AbortReason.DEADLINE


def _moment(moment: float | None) -> float:
    return math.inf if moment is None else moment


def _admit_by(request: OpenRequest, options: RequestOptions) -> float:
    return request.arrival_time + _moment(options.max_queue_time_s)


class Generation(AbstractAsyncContextManager[RequestStream]):
    """The scope of one request.

    Entering it refuses a full queue at once (Overloaded), takes the place of an older request of the same
    `supersede_key`, tokenizes (InvalidRequest, RequestFailed), checks lengths (PromptTooLong), hands the request to the
    scheduler, and gives the stream; a dead engine raises EngineDead.

    A request that is aborted, or whose deadline comes, while it is tokenized gives a stream that has ended and knows no
    prompt tokens; if its time in the queue is over by then, entering raises Overloaded. Cancelled while entering,
    nothing is left of the request. Leaving is synchronous: no checkpoint, no waiting.
    """

    def __init__(
        self,
        engine: Engine,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str | None,
        options: RequestOptions,
        pooling: Pooling | None = None,
    ) -> None:
        self._engine = engine
        self._pooling = pooling
        self._prompt = prompt
        self._params = params
        self._options = options
        self._request_id = request_id
        self._request: OpenRequest | None = None

    async def __aenter__(self) -> RequestStream:
        if self._request is not None:
            raise RuntimeError("a request's scope is entered once")
        engine = self._engine
        if self._pooling is not None:
            engine.check_pooling(self._pooling)
        self._request = request = engine._enter(self._request_id, self._prompt, self._params.n, self._options)
        token_ids: tuple[int, ...] = ()
        try:
            with request.tokenizing:
                token_ids = await engine.tokenizer.encode(self._prompt)
                if self._params.grammar is not None:
                    await engine.grammars.prepare(self._params.grammar)
                if self._params.thinking is not None:
                    await engine.grammars.prepare_texts()
            if request.tokenizing.cancel_called:
                engine._end_before_submit(request, self._params.n, self._options)
                return RequestStream(request, ())
            param = prompt_param(self._prompt)
            engine._submit(request, token_ids, self._params, self._options, param, self._pooling)
        except BaseException as error:
            if isinstance(error, trio.Cancelled):
                engine._end_early(request, AbortReason.LEFT)
            engine._leave(request)
            raise
        return RequestStream(request, token_ids)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._request is not None
        self._engine._leave(self._request)
