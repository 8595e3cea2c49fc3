"""The synchronous front door: `LLM(...).generate(prompts)` for scripts and batch work.

Imports trio through the portal: the engine runs in a thread of its own, and stays loaded between calls. A call hands
all its prompts to the engine, waits, and gives the answers in the order of the prompts.
"""

import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import attrs
import trio

from .config import EngineConfig
from .core.errors import InvalidRequest, RequestFailed, TrioletError
from .core.events import FinishReason
from .core.logprobs import TokenLogprobs
from .core.params import SamplingParams
from .core.pooling import Pooling, PoolingKind, numbers_of
from .device import Portal
from .engine import Engine
from .open import open_engine
from .parsing import AnswerFormats, formats_of
from .parsing.describe import described
from .progress import loading_bars, request_bar
from .prompt import ChatPrompt, Prompt, TextPrompt, as_prompt
from .stats import EngineStats


@attrs.frozen(kw_only=True)
class Choice:
    """One answer to a prompt."""

    text: str
    token_ids: tuple[int, ...]
    """An end or stop token is not among them."""
    finish_reason: FinishReason
    stop_reason: int | str | None
    """The stop token or stop string that ended it, where one did."""
    score: float | None = None
    """With beam search: what it was ranked by."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of `token_ids`, where they were asked for."""


@attrs.frozen(kw_only=True)
class RequestOutput:
    """What came of one prompt. `text`, `token_ids` and `finish_reason` are those of the first answer."""

    request_id: str
    prompt: str | None
    """The prompt's text, where it was one."""
    prompt_token_ids: tuple[int, ...]
    num_cached_tokens: int
    """Prompt tokens that the prefix cache spared."""
    choices: tuple[Choice, ...]
    """`SamplingParams.n` answers."""
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
    """One for each of `prompt_token_ids`, None for the first, where they were asked for."""

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.choices[0].finish_reason


@attrs.frozen(kw_only=True)
class EmbeddingOutput:
    """What came of one prompt of `LLM.embed`."""

    request_id: str
    prompt: str | None
    """The prompt's text, where it was one."""
    prompt_token_ids: tuple[int, ...]
    num_cached_tokens: int
    """Prompt tokens that the prefix cache spared."""
    embedding: list[float]


T = TypeVar("T")
Ask = Callable[[Engine], Awaitable[tuple[T, int]]]
"""One request: what came of it, and how many tokens that was."""


class LLM:
    """A loaded model. Made with the fields of `EngineConfig`; raises StartError when it cannot start. With
    `runner="process"` the model lives in a process of its own, and a crash of that costs time, not answers.

    Its methods may be called from several threads. Ctrl-C ends the requests of the call that it interrupts, and leaves
    the engine usable. Close it, or use it in a `with`; the end of the process closes it too.
    """

    def __init__(self, model: str | None = None, *, progress: bool = True, **fields: Any) -> None:
        config = attrs.evolve(EngineConfig(model=model, **fields), max_num_queued_tokens=0)
        with loading_bars() if progress else nullcontext() as report:
            self._portal = Portal(partial(open_engine, config, progress=report))
        self._close = weakref.finalize(self, self._portal.close)
        # A request beyond these would be refused: the others wait their turn here, so the tokens need no bound.
        self._turns = trio.Semaphore(config.max_num_queued_reqs)

    def generate(
        self,
        prompts: Prompt | str | Sequence[int] | Sequence[Prompt | str | Sequence[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Answer one prompt or several, in the order given; a prompt is a text, token ids, or a prompt object.

        `sampling_params` are for all, or a list with one for each prompt. The first prompt that cannot be served ends
        the call with its error (RequestError), which carries a note that names the prompt.
        """
        return self._run(_prompts(prompts), sampling_params, progress)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them, as `generate` does.

        `tools`, as OpenAI writes them, are shown to the model: by its chat template or, where that knows none, in the
        system's message. What they come to is read with `formats`; arguments in a conversation's calls are objects.
        """
        one = all(isinstance(message, Mapping) for message in messages)
        conversations = [messages] if one else messages
        tells = None if tools is None or self.formats.knows_tools else partial(described, format=self.formats.tools)
        prompts: list[Prompt] = [
            ChatPrompt(
                messages=conversation if tells is None else tells(conversation, tools),  # type: ignore[arg-type]
                tools=None if tools is None or tells is not None else tuple(tools),
                add_generation_prompt=add_generation_prompt,
                template_kwargs=template_kwargs or {},
            )
            for conversation in conversations
        ]
        return self._run(prompts, sampling_params, progress)

    def beam_search(
        self,
        prompts: Prompt | str | Sequence[int] | Sequence[Prompt | str | Sequence[int]],
        *,
        beam_width: int = 4,
        max_tokens: int | None = None,
        length_penalty: float = 1.0,
        progress: bool = True,
        **more: Any,
    ) -> list[RequestOutput]:
        """The `beam_width` most likely answers to each prompt, best first, with their scores; otherwise as `generate`.

        An answer scores its log-probability / length ** `length_penalty`; `more` are other fields of `SamplingParams`
        (min_tokens, stop_token_ids, ignore_eos, logprobs, …). Raises InvalidRequest for those that do not go with it.
        """
        params = SamplingParams(
            n=beam_width, max_tokens=max_tokens, length_penalty=length_penalty, use_beam_search=True, **more
        )
        return self._run(_prompts(prompts), params, progress)

    def embed(
        self,
        prompts: Prompt | str | Sequence[int] | Sequence[Prompt | str | Sequence[int]],
        *,
        pooling: PoolingKind = "last",
        dimensions: int | None = None,
        normalize: bool = True,
        progress: bool = True,
    ) -> list[EmbeddingOutput]:
        """A vector for each prompt, in the order given, from the model's last hidden states; otherwise as `generate`.

        `pooling`: of the last token, or the mean of all (nothing is then spared by the prefix cache). `dimensions`:
        keep the first so many numbers. `normalize`: make the vector one long, after that.
        """
        wanted = Pooling(kind=pooling, dimensions=dimensions, normalize=normalize)
        return self._ask_all([partial(_embed, prompt, wanted) for prompt in _prompts(prompts)], progress)

    @property
    def formats(self) -> AnswerFormats:
        """How the model writes tool calls and marks its reasoning, told from its chat template: for reading its answers
        and for holding them to calls (docs/tools.md)."""

        async def read(engine: Engine) -> str | None:
            return engine.tokenizer.chat_template(for_tools=True)

        return formats_of(self._portal.call(read))

    def stats(self) -> EngineStats:
        """The engine's numbers now."""

        async def read(engine: Engine) -> EngineStats:
            return engine.stats()

        return self._portal.call(read)

    def close(self) -> None:
        """Give the model's memory back. Idempotent; calls that are under way end with EngineDead."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(
        self,
        prompts: list[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        progress: bool,
    ) -> list[RequestOutput]:
        jobs = zip(prompts, _params(sampling_params, len(prompts)), strict=True)
        return self._ask_all([partial(_answer, prompt, params) for prompt, params in jobs], progress)

    def _ask_all(self, asks: list[Ask[T]], progress: bool) -> list[T]:
        with request_bar(len(asks), show=progress) as ended:
            return self._portal.call(partial(_ask_all, asks, self._turns, ended))


def _prompts(prompts: Any) -> list[Prompt]:
    """One prompt or several, as a list."""
    one = not isinstance(prompts, Sequence) or isinstance(prompts, str | bytes)
    if one or (prompts and isinstance(prompts[0], int)):
        return [as_prompt(prompts)]
    return [as_prompt(prompt) for prompt in prompts]


def _params(given: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int) -> list[SamplingParams]:
    """Parameters for each prompt."""
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * num_prompts
    if len(given) != num_prompts:
        raise InvalidRequest(
            f"There are {num_prompts} prompts and {len(given)} sampling_params.", param="sampling_params"
        )
    return list(given)


async def _ask_all(asks: list[Ask[T]], turns: trio.Semaphore, ended: Callable[[int], None], engine: Engine) -> list[T]:
    """Every request at once, as far as the queue takes them; started in their order."""
    outputs: dict[int, T] = {}

    async def answer(index: int) -> None:
        try:
            outputs[index], num_tokens = await asks[index](engine)
        except TrioletError as error:
            error.add_note(f"This was prompt {index}.")
            raise
        finally:
            turns.release()
        ended(num_tokens)

    try:
        async with trio.open_nursery() as nursery:
            for index in range(len(asks)):
                await turns.acquire()
                nursery.start_soon(answer, index)
    except ExceptionGroup as group:
        error = group.exceptions[0]
        raise error from error.__cause__
    return [outputs[index] for index in range(len(asks))]


async def _embed(prompt: Prompt, pooling: Pooling, engine: Engine) -> tuple[EmbeddingOutput, int]:
    async with engine.embed(prompt, pooling) as stream:
        (output,) = [output async for output in stream]
    if output.vector is None:
        raise RequestFailed("The request was ended before it had a vector.")
    embedding = EmbeddingOutput(
        request_id=stream.request_id,
        prompt=prompt.text if isinstance(prompt, TextPrompt) else None,
        prompt_token_ids=stream.prompt_token_ids,
        num_cached_tokens=output.num_cached_tokens,
        embedding=numbers_of(output.vector),
    )
    return embedding, len(stream.prompt_token_ids)


async def _answer(prompt: Prompt, params: SamplingParams, engine: Engine) -> tuple[RequestOutput, int]:
    texts: list[list[str]] = [[] for _ in range(params.n)]
    token_ids: list[list[int]] = [[] for _ in range(params.n)]
    logprobs: list[list[TokenLogprobs]] = [[] for _ in range(params.n)]
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
    ends: dict[int, Choice] = {}
    num_cached_tokens = 0
    async with engine.generate(prompt, params) as stream:
        async for delta in stream:
            texts[delta.choice].append(delta.text)
            token_ids[delta.choice] += delta.token_ids
            logprobs[delta.choice] += delta.logprobs
            prompt_logprobs = stream.prompt_logprobs
            num_cached_tokens = delta.num_cached_tokens
            if delta.finish_reason is not None:
                ends[delta.choice] = Choice(
                    text="".join(texts[delta.choice]),
                    token_ids=tuple(token_ids[delta.choice]),
                    finish_reason=delta.finish_reason,
                    stop_reason=delta.stop_reason,
                    score=delta.score,
                    logprobs=tuple(logprobs[delta.choice]),
                )
    output = RequestOutput(
        request_id=stream.request_id,
        prompt=prompt.text if isinstance(prompt, TextPrompt) else None,
        prompt_token_ids=stream.prompt_token_ids,
        num_cached_tokens=num_cached_tokens,
        choices=tuple(ends[choice] for choice in range(params.n)),
        prompt_logprobs=prompt_logprobs,
    )
    return output, sum(len(choice.token_ids) for choice in output.choices)
