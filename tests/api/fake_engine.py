"""An engine without a model: it answers what it is told to, and shows what became of every request.

It stands in for `triolet.engine.engine.Engine`. A character is a token; a text prompt's answer is its script. A request
can be held in a stage for ever, and every test can wait for a request's end. How likely a token is says `likelihood`.
"""

from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import attrs
import trio

from triolet.engine.config import EngineConfig
from triolet.engine.controls import Settings
from triolet.engine.core.errors import EngineDead, InvalidRequest, Overloaded, PromptTooLong, TrioletError
from triolet.engine.core.events import FinishReason
from triolet.engine.core.logprobs import TokenLogprobs
from triolet.engine.core.params import LogprobsLimit, SamplingParams
from triolet.engine.core.pooling import POOLINGS, Pooling
from triolet.engine.options import DEFAULT_OPTIONS, RequestOptions
from triolet.engine.prompt import InfillPrompt, Prompt, TextPrompt, TokenPrompt, check_ids, prompt_param
from triolet.engine.stats import EngineStats
from triolet.engine.story import Story
from triolet.engine.stream import Output

VOCAB_SIZE = 1000
HIDDEN_SIZE = 8


@attrs.define(kw_only=True)
class Seen:
    """One request as the engine had it."""

    request_id: str
    prompt: Prompt
    params: SamplingParams
    options: RequestOptions = DEFAULT_OPTIONS
    stage: str = "tokenizing"
    aborted: bool = False
    reached: dict[str, trio.Event] = attrs.field(factory=dict)
    left: trio.Event = attrs.field(factory=trio.Event)
    num_outputs: int = 0
    finished: bool = False

    def event(self, stage: str) -> trio.Event:
        return self.reached.setdefault(stage, trio.Event())

    def enter(self, stage: str) -> None:
        self.stage = stage
        self.event(stage).set()


def likelihood(token_id: int, num_top: int) -> TokenLogprobs:
    """Made up: the higher the less likely, and always behind the letters a, b, c, …"""
    return TokenLogprobs(
        token_id=token_id,
        logprob=-token_id / 100,
        rank=30,
        top_token_ids=tuple(range(97, 97 + num_top)),
        top_logprobs=tuple(-place / 1000 for place in range(num_top)),
    )


class FakeDecoder:
    """Text from the fake tokenizer's tokens."""

    def push(self, ids: Any) -> str:
        return "".join(map(chr, ids))

    def flush(self) -> str:
        return ""


class FakeTokenizer:
    """A character is a token: its code point."""

    vocab_size = VOCAB_SIZE
    has_chat_template = True
    special_tokens: ClassVar = {"eos_token": "$"}

    async def encode(self, prompt: Prompt) -> tuple[int, ...]:
        await trio.lowlevel.checkpoint()
        token_ids = self._encode(prompt)
        return token_ids if prompt.cut is None else prompt.cut.apply(token_ids)

    def _encode(self, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, TokenPrompt):
            self._check(prompt.token_ids, prompt.param)
            return prompt.token_ids
        if isinstance(prompt, TextPrompt):
            return tuple(map(ord, ("^" if prompt.add_special_tokens else "") + prompt.text))
        if isinstance(prompt, InfillPrompt):
            return tuple(map(ord, f"({prompt.text}|{prompt.suffix})"))
        text = "".join(f"<{message['role']}>{message['content']}" for message in prompt.messages)
        return tuple(map(ord, text + ("<assistant>" if prompt.add_generation_prompt else "")))

    template: str | None = None
    """The source of its chat template."""

    def chat_template(self, *, for_tools: bool) -> str | None:
        return self.template

    def mark(self, text: str) -> tuple[tuple[int, ...], bool]:
        return tuple(map(ord, text)), True

    def last_words(self, token_ids: Any) -> str:
        return "".join(map(chr, token_ids[-24:]))

    def token_bytes(self, token_id: int) -> bytes:
        return chr(token_id).encode()

    def incremental(self, prompt_token_ids: Any, *, skip_special_tokens: bool = True) -> FakeDecoder:
        return FakeDecoder()

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = True) -> str:
        self._check(token_ids, "tokens")
        return "".join(map(chr, token_ids))

    def _check(self, token_ids: Any, param: str) -> None:
        for token in token_ids:
            if token >= VOCAB_SIZE:
                raise InvalidRequest(f"{token} is not in the vocabulary.", param=param)


class FakeControls:
    """Does what it is told, and notes it. `busy`: blocks are held."""

    def __init__(self) -> None:
        self.settings = Settings(
            max_num_seqs=256,
            scheduling_policy="fcfs",
            max_num_batched_tokens=2048,
            long_prefill_token_threshold=0,
            max_num_queued_reqs=16,
            max_num_queued_tokens=0,
        )
        self.busy = False

    async def change(self, **fields: int | None) -> Settings:
        self.settings = attrs.evolve(self.settings, **{name: n for name, n in fields.items() if n is not None})
        return self.settings

    async def pause(self, paused: bool) -> Settings:
        self.settings = attrs.evolve(self.settings, paused=paused)
        return self.settings

    async def reset_prefix_cache(self) -> bool:
        return not self.busy


class FakeEngine:
    """`script(prompt)` gives the pieces of an answer; `hold` names the stage in which every request stays."""

    def __init__(self, *, pieces: list[str] | None = None, hold: str | None = None, max_model_len: int = 4096) -> None:
        self.model_name = "fake"
        self.full = False
        self.created = 1_700_000_000
        self.max_model_len = max_model_len
        self.tokenizer = FakeTokenizer()
        self.logprobs_limit = LogprobsLimit(vocab_size=VOCAB_SIZE)
        self.health: str | None = None
        self.pieces = ["Hello", ", ", "wörld 🌍", "!"] if pieces is None else pieces
        self.hold = hold
        self.hold_after = 2
        self.finish_reason = FinishReason.STOP
        self.stop_reason: int | str | None = None
        self.end_token_id: int | None = None
        self.cached_tokens = 0
        self.refusal: TrioletError | None = None
        self.break_after: int | None = None
        self.error: Exception = TrioletError("unset")
        self.seen: list[Seen] = []
        self.open: dict[str, Seen] = {}
        self._changed = trio.Event()
        self._released = trio.Event()
        self._died = trio.Event()
        self.told: list[Story] = []
        self.controls = FakeControls()
        self.counters = {"prompt_tokens": 0, "generation_tokens": 0}

    def generate(
        self, prompt: Prompt, params: SamplingParams, *, request_id: str, options: RequestOptions = DEFAULT_OPTIONS
    ) -> Any:
        return self._generate(prompt, params, request_id, options)

    def embed(
        self, prompt: Prompt, pooling: Pooling, *, request_id: str, options: RequestOptions = DEFAULT_OPTIONS
    ) -> Any:
        return self._generate(prompt, SamplingParams(), request_id, options, pooling)

    def check_pooling(self, pooling: Pooling) -> None:
        pooling.check(HIDDEN_SIZE)

    def stories(self, name: str | None = None) -> list[Story]:
        """Those that were put there."""
        return [story for story in self.told if name is None or story.name == name]

    def abort(self, request_id: str) -> bool:
        """Only noted: what is held stays so until it is released."""
        seen = self.open.get(request_id)
        if seen is None or seen.aborted:
            return False
        seen.aborted = True
        return True

    @asynccontextmanager
    async def _generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        options: RequestOptions,
        pooling: Pooling | None = None,
    ) -> AsyncIterator[Any]:
        if self.health is not None:
            raise EngineDead(self.health)
        if self.refusal is not None:
            raise self.refusal
        seen = Seen(request_id=request_id, prompt=prompt, params=params, options=options)
        self.seen.append(seen)
        self.open[request_id] = seen
        self._changed.set()
        self._changed = trio.Event()
        try:
            await self._hold_at(seen, "tokenizing")
            token_ids = await self.tokenizer.encode(prompt)
            if not token_ids:
                raise InvalidRequest("The prompt is empty.", param=prompt_param(prompt))
            if len(token_ids) >= self.max_model_len:
                raise PromptTooLong(
                    f"The prompt has {len(token_ids)} tokens; the model takes {self.max_model_len}.",
                    param=prompt_param(prompt),
                )
            check_ids(params, vocab_size=VOCAB_SIZE)
            yield FakeStream(self, seen, token_ids, pooling)
        finally:
            del self.open[request_id]
            seen.left.set()

    async def _hold_at(self, seen: Seen, stage: str) -> None:
        seen.enter(stage)
        if self.hold == stage:
            await self._released.wait()

    def release(self) -> None:
        """Let go what is held, now and later."""
        self._released.set()

    async def wait_seen(self, count: int = 1) -> Seen:
        """The last request, once there have been `count`."""
        while len(self.seen) < count:
            await self._changed.wait()
        return self.seen[count - 1]

    def die(self, reason: str) -> None:
        """As when an actor has died: open streams end with EngineDead, and nobody comes in."""
        self.health = reason
        self.error = EngineDead(reason)
        self._died.set()
        self.release()

    @property
    def dead(self) -> bool:
        return self._died.is_set()

    async def wait_dead(self) -> None:
        await self._died.wait()

    def overload(self) -> Overloaded | None:
        return overloaded() if self.full else None

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self.open),
            waiting=3,
            num_blocks=100,
            num_free_blocks=75,
            kv_usage=0.25,
            prefix_queries=80,
            prefix_hits=20,
            preemptions=2,
            cached_prompt_tokens=20,
            steps=7,
            scheduled_tokens=70,
            **self.counters,
        )


class FakeStream:
    """Goes through the stages, then gives piece after piece: a letter is its own token, a longer piece one of its
    number."""

    def __init__(
        self, engine: FakeEngine, seen: Seen, prompt_token_ids: tuple[int, ...], pooling: Pooling | None = None
    ) -> None:
        self._pooling = pooling
        self._engine = engine
        self._seen = seen
        self.prompt_token_ids = prompt_token_ids
        self.num_prompt_tokens = len(prompt_token_ids)
        self.request_id = seen.request_id

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprobs | None, ...]:
        wanted = self._seen.params.prompt_logprobs
        if wanted is None or self.num_prompt_tokens < 2 or self._seen.left.is_set():
            return ()
        return (None, *(likelihood(token, wanted) for token in self.prompt_token_ids[1:]))

    def __aiter__(self) -> "FakeStream":
        return self

    async def admitted(self) -> None:
        await trio.lowlevel.checkpoint()

    async def __anext__(self) -> Output:
        engine, seen = self._engine, self._seen
        await trio.lowlevel.checkpoint()
        if seen.finished:
            raise StopAsyncIteration
        if seen.num_outputs == 0:
            await engine._hold_at(seen, "queued")
            await engine._hold_at(seen, "prefill")
        if seen.num_outputs == engine.hold_after:
            await engine._hold_at(seen, "decode")
        if engine.dead or engine.break_after == seen.num_outputs:
            raise engine.error
        if self._pooling is not None:
            return self._vector(self._pooling)
        text = engine.pieces[seen.num_outputs] if seen.num_outputs < len(engine.pieces) else ""
        seen.num_outputs += 1
        limit = seen.params.max_tokens
        at_limit = limit is not None and seen.num_outputs >= limit
        seen.finished = at_limit or seen.num_outputs >= len(engine.pieces)
        reason = FinishReason.LENGTH if at_limit and seen.num_outputs < len(engine.pieces) else engine.finish_reason
        token = ord(text) if len(text) == 1 and ord(text) < VOCAB_SIZE else seen.num_outputs
        wanted = seen.params.logprobs
        end = engine.end_token_id if seen.finished and reason is FinishReason.STOP else None
        return Output(
            text=text,
            token_ids=(token,),
            logprobs=() if wanted is None else (likelihood(token, wanted),),
            end_token_id=end,
            end_logprobs=None if end is None or wanted is None else likelihood(end, wanted),
            finish_reason=reason if seen.finished else None,
            stop_reason=engine.stop_reason if seen.finished else None,
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=engine.cached_tokens,
            num_output_tokens=seen.num_outputs,
        )

    def _vector(self, pooling: Pooling) -> Output:
        """The prompt's first tokens, as many as there are dimensions, and in the last place how it is pooled."""
        self._seen.finished = True
        self._seen.num_outputs += 1
        reason = self._engine.finish_reason
        numbers = [*self.prompt_token_ids, *[0] * HIDDEN_SIZE][: pooling.dimensions or HIDDEN_SIZE]
        numbers[-1] = POOLINGS.index(pooling.kind)
        return Output(
            text="",
            token_ids=(),
            finish_reason=reason,
            stop_reason=self._engine.stop_reason,
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self._engine.cached_tokens,
            num_output_tokens=0,
            vector=array("f", numbers).tobytes() if reason is FinishReason.STOP else None,
        )


def opening(engine: FakeEngine) -> Callable[..., Any]:
    """An `open_engine` that gives `engine`, and whose scope fails, as the real one's, once the engine is dead."""

    @asynccontextmanager
    async def open_engine(
        config: EngineConfig, *, observer: Any = None, progress: Any = None
    ) -> AsyncIterator[FakeEngine]:
        async with trio.open_nursery() as nursery:

            async def supervise() -> None:
                await engine.wait_dead()
                raise EngineDead(engine.health or "")

            nursery.start_soon(supervise)
            yield engine
            nursery.cancel_scope.cancel()

    return open_engine


def overloaded() -> Overloaded:
    return Overloaded("The queue is full: 9 requests are waiting.", retry_after_s=7)
