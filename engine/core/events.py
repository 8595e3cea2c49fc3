"""What the scheduler says about requests: one message a step, to the detokenizer and whoever watches."""

import enum

import attrs

from .ids import RequestId, TokenId
from .logprobs import PromptLogprobs, TokenLogprobs


class FinishReason(enum.StrEnum):
    """How a request ended: the one terminal event that each gets."""

    STOP = "stop"
    LENGTH = "length"
    REPETITION = "repetition"
    ABORT = "abort"
    TIMEOUT = "timeout"
    ERROR = "error"


class PreemptReason(enum.StrEnum):
    """Why a sequence had to give its blocks back."""

    BLOCKS = "blocks"
    """A running sequence needed a block, and none was free."""
    PRIORITY = "priority"
    """A better one waited."""
    LIMIT = "limit"
    """Fewer sequences may run than did (`Scheduler.set_limits`)."""
    DEVICE = "device"
    """The device lost what it had computed."""


@attrs.frozen(kw_only=True)
class Preempted:
    """A sequence of a request went back to the waiting queue, with nothing computed."""

    request: RequestId
    reason: PreemptReason


@attrs.frozen(kw_only=True)
class Admitted:
    """A request left the waiting queue for the first time."""

    request: RequestId
    num_cached_tokens: int
    """Prompt tokens that the prefix cache spared."""


@attrs.frozen(kw_only=True)
class Finished:
    """An answer has ended; with `last`, this is the request's terminal event. Its blocks were given back before."""

    request: RequestId
    reason: FinishReason
    choice: int = 0
    """Which of the `SamplingParams.n` answers."""
    last: bool = True
    """No answer of the request goes on: nothing more will be said of it."""
    stop_token: TokenId | None = None
    """The stop token that ended it, where one of `SamplingParams.stop_token_ids` did (the model's own end: None)."""
    end_token: TokenId | None = None
    """The end or stop token that ended it, which is not listed among its tokens; None where something else did."""
    end_logprobs: TokenLogprobs | None = None
    """Those of `end_token`, where the request asked for logprobs."""
    num_output_tokens: int = 0
    """Tokens generated, the one that ended it included."""
    score: float | None = None
    """With beam search: what the answer was ranked by."""
    vector: bytes | None = None
    """What a request with a pooling asked for: float32, little-endian."""
    message: str | None = None
    """With ERROR: what went wrong, fit for the client."""
    refused: bool = False
    """With ERROR: the request asks for what cannot be, and nothing here has broken."""
    param: str | None = None
    """With `refused`: the field that is to blame."""
    never_admitted: bool = False
    """Nothing was computed for it. With TIMEOUT: it was not admitted by `Request.admit_by`. With ERROR: it could never
    run here, and was refused at once."""


@attrs.frozen(kw_only=True)
class StepEvents:
    """All that has happened since the last message, tokens as parallel columns.

    A request's tokens come before its `finished`. The token that ended a request (an end or stop token) is not listed
    among its tokens unless `ignore_eos` made it an ordinary one.
    """

    step: int
    preempted: tuple[Preempted, ...] = ()
    admitted: tuple[Admitted, ...] = ()
    chunks: tuple[tuple[RequestId, int], ...] = ()
    """Parts of prompts, with their numbers of tokens, that the last plan computes."""
    requests: tuple[RequestId, ...] = ()
    token_ids: tuple[TokenId, ...] = ()
    choices: tuple[int, ...] = ()
    """For each token, which of the request's answers it belongs to."""
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    """For each token, where its request asked for them; empty where no token has any."""
    prompt_logprobs: tuple[tuple[RequestId, PromptLogprobs], ...] = ()
    """Each position of a prompt once, in order, before the request's first token."""
    finished: tuple[Finished, ...] = ()

    @property
    def empty(self) -> bool:
        happened = self.preempted or self.admitted or self.chunks
        return not (happened or self.requests or self.prompt_logprobs or self.finished)
