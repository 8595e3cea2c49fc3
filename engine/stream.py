"""What a client reads: `RequestStream`, an async iterator of `Output`.

Imports trio through the mailbox. It holds no task and no resource; the request belongs to the scope that gave the
stream (`Engine.generate`), not to the stream.
"""

from collections.abc import AsyncIterator

import attrs
import trio

from .core.errors import Overloaded
from .core.events import FinishReason
from .core.logprobs import TokenLogprobs
from .registry import QUEUED, OpenRequest

SUPERSEDED = "superseded"
"""A stop reason."""


@attrs.frozen(kw_only=True)
class Output:
    """All that is new since the last one: one token's text, or many tokens' where the reader was behind."""

    choice: int = 0
    """Which of the request's answers (`SamplingParams.n`) it belongs to."""
    text: str
    """New text. Text that may still become a stop string is held back, and so is half a character."""
    token_ids: tuple[int, ...]
    """New tokens; their text may come with a later output. An end or stop token is not among them."""
    finish_reason: FinishReason | None
    """Set on an answer's last output, and only there."""
    stop_reason: int | str | None
    """The stop token or stop string that ended the answer, where one did; SUPERSEDED for a request whose place a newer
    one took (`RequestOptions.supersede_key`)."""
    num_prompt_tokens: int
    num_cached_tokens: int
    """Prompt tokens that the prefix cache spared."""
    num_output_tokens: int
    """Tokens so far; on the last output all of the answer's, an end or stop token included."""
    score: float | None = None
    """On the last output of an answer found by beam search: what it was ranked by."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of `token_ids` where the request asked for them, else none."""
    end_token_id: int | None = None
    """On the last output of an answer that an end or stop token ended: which. It is not among the `token_ids`."""
    end_logprobs: TokenLogprobs | None = None
    """Those of the end token, where the request asked for logprobs."""
    vector: bytes | None = None
    """On the only output of a request with a pooling: float32, little-endian (`core.pooling.numbers_of`)."""


class RequestStream(AsyncIterator[Output]):
    """The answers to one request, for one reader.

    Each output belongs to one answer (`choice`); an answer ends with the output that has a `finish_reason`, and the
    iteration ends after the last answer. When the request ends as an error, what there is of the text comes first, then
    RequestFailed (this request broke) or EngineDead is raised; Overloaded, before any text, if it was not admitted
    within `RequestOptions.max_queue_time_s`. Each step is a checkpoint; a cancelled one loses
    nothing. Outside of the request's scope it raises `trio.ClosedResourceError`.
    """

    def __init__(self, request: OpenRequest, prompt_token_ids: tuple[int, ...]) -> None:
        self._request = request
        self._num_output_tokens: dict[int, int] = {}
        self.prompt_token_ids = prompt_token_ids

    @property
    def request_id(self) -> str:
        """What the client calls the request, or the name the engine chose."""
        return self._request.name

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprobs | None, ...]:
        """For each token of the prompt, None for the first, where the request asked for them. Complete once an output
        has come; empty before, once its scope has been left, and where it did not ask."""
        known = self._request.mailbox.prompt_logprobs
        return (None, *known) if known else ()

    async def admitted(self) -> None:
        """Return once the request has been admitted, or has ended: whoever answers with a status knows it then.

        Raises Overloaded if it was not admitted within `RequestOptions.max_queue_time_s`. Takes nothing; a checkpoint,
        for one task at a time.
        """
        await trio.lowlevel.checkpoint()
        while self._request.stage in QUEUED:
            await self._request.moved.wait()
        failure = self._request.mailbox.failure
        if isinstance(failure, Overloaded):
            raise failure

    async def __anext__(self) -> Output:
        delta = await self._request.mailbox.take()
        if delta is None:
            raise StopAsyncIteration
        end = delta.end
        self._request.story.num_deltas += 1
        num_output_tokens = self._num_output_tokens.get(delta.choice, 0) + len(delta.token_ids)
        self._num_output_tokens[delta.choice] = num_output_tokens
        return Output(
            choice=delta.choice,
            text=delta.text,
            token_ids=delta.token_ids,
            finish_reason=end.reason if end is not None else None,
            stop_reason=end.stop_reason if end is not None else None,
            num_prompt_tokens=len(self.prompt_token_ids),
            num_cached_tokens=self._request.num_cached_tokens,
            num_output_tokens=end.num_output_tokens if end is not None else num_output_tokens,
            score=end.score if end is not None else None,
            logprobs=delta.logprobs,
            end_token_id=end.end_token_id if end is not None else None,
            end_logprobs=end.end_logprobs if end is not None else None,
            vector=end.vector if end is not None else None,
        )
