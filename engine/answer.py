"""One answer on its way from tokens to its reader: decoder, stop strings, and the slot of the mailbox.

Pure but for the mailbox. The end is said once, by `finish`, whatever happened before.
"""

from collections.abc import Sequence

from .core.events import Finished, FinishReason
from .core.ids import TokenId
from .mailbox import End, Mailbox
from .stop import StopMatcher
from .tokenizer import IncrementalDecoder


class Answer:
    """Owned by the detokenizer. What the decoder raises comes out of `push` and `flush`."""

    __slots__ = (
        "_decoder",
        "_mailbox",
        "_min_tokens",
        "_stops",
        "choice",
        "ended",
        "last_token_time",
        "num_output_tokens",
        "reason",
        "stopped_by",
    )

    def __init__(
        self, mailbox: Mailbox, choice: int, decoder: IncrementalDecoder, *, stop: Sequence[str], min_tokens: int
    ) -> None:
        self._mailbox = mailbox
        self._decoder = decoder
        self._stops = StopMatcher(stop) if stop else None
        self._min_tokens = min_tokens
        self.choice = choice
        self.num_output_tokens = 0
        """Tokens that were put into the mailbox; once finished, what the scheduler counts."""
        self.last_token_time: float | None = None
        self.stopped_by: str | None = None
        """The stop string that it met."""
        self.ended = False
        self.reason = FinishReason.STOP
        """How it ended, once it has."""

    @property
    def over(self) -> bool:
        """Nothing that still comes is part of it."""
        return self.stopped_by is not None or self.ended or self._mailbox.failed

    def push(self, token: TokenId) -> None:
        """Take one token in, when it is not over; afterwards it may be."""
        self.num_output_tokens += 1
        self._show(self._decoder.push((token,)), (token,))

    def flush(self) -> None:
        """No more tokens come: show what was held back. It may still complete a stop string."""
        if self.over:
            return
        self._show(self._decoder.flush(), ())
        if self._stops is not None and self.stopped_by is None:
            self._mailbox.put(self._stops.flush(), (), self.choice)

    def finish(self, finished: Finished, *, aborted_by: str | None = None) -> None:
        """Say how it ended; once the whole request has failed there is nothing left to say. An answer that met its stop
        string is complete, however the scheduler came to end it. `aborted_by`: the stop reason of an abort."""
        self.ended = True
        if self._mailbox.failed:
            self.reason = finished.reason
            return
        stop_reason: int | str | None = self.stopped_by
        if self.stopped_by is None:
            self.reason = finished.reason
            stop_reason = aborted_by if finished.reason is FinishReason.ABORT else finished.stop_token
            self.num_output_tokens = finished.num_output_tokens
        end = End(
            reason=self.reason, stop_reason=stop_reason, num_output_tokens=self.num_output_tokens, score=finished.score
        )
        self._mailbox.finish(end, self.choice)

    def _show(self, text: str, token_ids: tuple[int, ...]) -> None:
        # Stop strings count from the token after the first min_tokens on.
        if self._stops is not None and text and self.num_output_tokens > self._min_tokens:
            text, self.stopped_by = self._stops.push(text)
        self._mailbox.put(text, token_ids, self.choice)
