"""One answer on its way from tokens to its reader: decoder, stop strings, and the slot of the mailbox.

Pure but for the mailbox. The end is said once, by `finish`, whatever happened before.
"""

from .core.events import Finished, FinishReason
from .core.ids import TokenId
from .core.logprobs import TokenLogprobs
from .core.params import SamplingParams
from .mailbox import End, Mailbox
from .stop import StopMatcher
from .tokenizer import IncrementalDecoder

REPETITION_DETECTED = "repetition_detected"
"""A stop reason."""


class Answer:
    """Owned by the detokenizer. What the decoder raises comes out of `push` and `flush`."""

    __slots__ = (
        "_decoder",
        "_include_stop",
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

    def __init__(self, mailbox: Mailbox, choice: int, decoder: IncrementalDecoder, params: SamplingParams) -> None:
        self._mailbox = mailbox
        self._decoder = decoder
        self._include_stop = params.include_stop_str_in_output
        self._stops = StopMatcher(params.stop, include=self._include_stop) if params.stop else None
        self._min_tokens = params.min_tokens
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

    def push(self, token: TokenId, logprobs: TokenLogprobs | None = None) -> None:
        """Take one token in, when it is not over; afterwards it may be."""
        self.num_output_tokens += 1
        self._show(self._decoder.push((token,)), (token,), () if logprobs is None else (logprobs,))

    def flush(self, end_token: TokenId | None = None) -> None:
        """No more tokens come: show what was held back, and the text of the token that ended it where that was asked
        for. It may still complete a stop string."""
        if self.over:
            return
        text = self._decoder.push((end_token,)) if end_token is not None and self._include_stop else ""
        self._show(text + self._decoder.flush(), ())
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
            stop_reason = _stop_reason(finished, aborted_by)
            self.num_output_tokens = finished.num_output_tokens
        end = End(
            reason=self.reason,
            stop_reason=stop_reason,
            num_output_tokens=self.num_output_tokens,
            score=finished.score,
            end_token_id=finished.end_token if self.stopped_by is None else None,
            end_logprobs=finished.end_logprobs if self.stopped_by is None else None,
            vector=finished.vector,
        )
        self._mailbox.finish(end, self.choice)

    def _show(self, text: str, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...] = ()) -> None:
        # Stop strings count from the token after the first min_tokens on.
        if self._stops is not None and text and self.num_output_tokens > self._min_tokens:
            text, self.stopped_by = self._stops.push(text)
        self._mailbox.put(text, token_ids, self.choice, logprobs)


def _stop_reason(finished: Finished, aborted_by: str | None) -> int | str | None:
    match finished.reason:
        case FinishReason.ABORT:
            return aborted_by
        case FinishReason.REPETITION:
            return REPETITION_DETECTED
        case _:
            return finished.stop_token
