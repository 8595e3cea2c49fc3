"""The mailbox of a request: one slot per answer in which everything that is new waits, merged, for the one reader.

Imports trio through `parking`. The detokenizer puts, the client's task takes. A reader that is behind finds one larger
delta instead of many small ones, so a slow client costs nobody else's time, and what a mailbox holds is bounded by the
answers themselves: `max_tokens` tokens and their text. The end of an answer is part of its slot and comes exactly once.
"""

from collections import deque

import attrs
import trio

from .core.errors import TrioletError
from .core.events import FinishReason
from .core.logprobs import TokenLogprobs
from .parking import ParkingSpot


@attrs.frozen(kw_only=True)
class End:
    """The terminal event of an answer, as its reader sees it."""

    reason: FinishReason
    stop_reason: int | str | None = None
    """The stop token or the stop string that ended the answer; None where the model ended it, or nothing did."""
    num_output_tokens: int = 0
    """Tokens of the whole answer, an end or stop token included."""
    score: float | None = None
    """With beam search: what the answer was ranked by."""
    end_token_id: int | None = None
    """The end or stop token that ended it; it is not among its tokens."""
    end_logprobs: TokenLogprobs | None = None
    """Those of the end token, where they were asked for."""
    vector: bytes | None = None
    """What a request with a pooling asked for."""


@attrs.frozen(kw_only=True)
class Delta:
    """All that was new of one answer when it was taken."""

    choice: int
    text: str
    token_ids: tuple[int, ...]
    end: End | None
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token, or none where they were not asked for."""


@attrs.define(eq=False)
class _Slot:
    """What one answer has ready."""

    texts: list[str] = attrs.field(factory=list)
    token_ids: list[int] = attrs.field(factory=list)
    logprobs: list[TokenLogprobs] = attrs.field(factory=list)
    end: End | None = None
    in_line: bool = False


class Mailbox:
    """One writer's side (`put`, `finish`, `fail`), one reader's side (`take`, `close`); all in the event loop's thread.

    A request ends once: when all its answers have ended, or by `fail`.
    """

    __slots__ = ("_closed", "_failure", "_line", "_num_open", "_slots", "_spot", "prompt_logprobs")

    def __init__(self, num_choices: int = 1) -> None:
        self._slots = [_Slot() for _ in range(num_choices)]
        self._line: deque[int] = deque()  # answers with something to take, who has waited longest first
        self._num_open = num_choices
        self._failure: TrioletError | None = None
        self._closed = False
        self.prompt_logprobs: list[TokenLogprobs] = []
        """Of the prompt's tokens from the second on, as far as they are known; all of them before the first token."""
        self._spot = ParkingSpot()

    @property
    def closed(self) -> bool:
        """The reader has gone: what is put is dropped, so there is no use in preparing it."""
        return self._closed

    @property
    def finished(self) -> bool:
        """The terminal event is in, or has been taken."""
        return self._failure is not None or not self._num_open

    @property
    def failed(self) -> bool:
        return self._failure is not None

    @property
    def failure(self) -> TrioletError | None:
        """What `fail` was given."""
        return self._failure

    def put(
        self, text: str, token_ids: tuple[int, ...], choice: int = 0, logprobs: tuple[TokenLogprobs, ...] = ()
    ) -> None:
        """Add what is new. The reader wakes for text only: tokens whose text is held back come with the next text."""
        slot = self._open_slot(choice)
        if self._closed:
            return
        slot.token_ids += token_ids
        slot.logprobs += logprobs
        if text:
            slot.texts.append(text)
            self._announce(slot, choice)

    def finish(self, end: End, choice: int = 0) -> None:
        """The end of an answer: once, and nothing after it."""
        slot = self._open_slot(choice)
        slot.end = end
        self._num_open -= 1
        if not self._closed:
            self._announce(slot, choice)

    def fail(self, error: TrioletError) -> None:
        """The request ends here; its reader raises `error` once it has taken what is there."""
        if self.finished:
            raise AssertionError("a request got a second terminal event")
        self._failure = error
        self._spot.wake()

    def close(self) -> None:
        """The reader goes. What is pending is dropped; the terminal event may still come, for nobody."""
        self._closed = True
        self._line.clear()
        for slot in self._slots:
            slot.texts.clear()
            slot.token_ids.clear()
            slot.logprobs.clear()
        self.prompt_logprobs.clear()
        self._spot.wake()

    async def take(self) -> Delta | None:
        """All that is new of the answer that has waited longest, as soon as there is text or an end; None after the
        last end has been taken.

        A checkpoint in any case, before anything is taken: a cancelled reader loses nothing, and a busy one lets the
        others run. Raises what `fail` was given, and `trio.ClosedResourceError` after `close`.
        """
        if self._closed or self._line or self.finished:
            await trio.lowlevel.checkpoint()
        while not (self._closed or self._line or self.finished):
            await self._spot.wait()
        if self._closed:
            raise trio.ClosedResourceError("the request's scope has been left")
        if self._line:
            return self._take(self._line.popleft())
        if self._failure is not None:
            raise self._failure
        return None

    def _take(self, choice: int) -> Delta:
        slot = self._slots[choice]
        delta = Delta(
            choice=choice,
            text="".join(slot.texts),
            token_ids=tuple(slot.token_ids),
            logprobs=tuple(slot.logprobs),
            end=slot.end,
        )
        slot.texts.clear()
        slot.token_ids.clear()
        slot.logprobs.clear()
        slot.in_line = False
        return delta

    def _open_slot(self, choice: int) -> _Slot:
        slot = self._slots[choice]
        if self._failure is not None or slot.end is not None:
            raise AssertionError("an answer goes on after its end")
        return slot

    def _announce(self, slot: _Slot, choice: int) -> None:
        if not slot.in_line:
            slot.in_line = True
            self._line.append(choice)
        self._spot.wake()
