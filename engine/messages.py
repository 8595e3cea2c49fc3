"""What the actors say to each other, beside the hot messages of the core (`StepPlan`, `StepResult`, `StepEvents`).

Pure attrs. Each actor's inbox takes one closed union; the bounds of the inboxes and their reasons stand here.
"""

from collections.abc import Callable

import attrs

from .core.events import FinishReason, StepEvents
from .core.ids import RequestId
from .core.params import SamplingParams
from .core.request import Request
from .registry import OpenRequest
from .tokenizer import IncrementalDecoder


@attrs.frozen(kw_only=True)
class Submit:
    """To the scheduler loop: a request that has been checked and tokenized."""

    request: Request


@attrs.frozen(kw_only=True)
class Abort:
    """To the scheduler loop: end a request at the next step boundary. Without effect once it has ended."""

    request: RequestId
    choice: int | None = None
    """Only this one of its answers; None: all of them."""
    reason: FinishReason = FinishReason.ABORT
    message: str | None = None
    """With ERROR: what went wrong, fit for the client."""


@attrs.frozen(kw_only=True)
class AtBoundary:
    """To the scheduler loop: call this between two steps. It must not raise."""

    call: Callable[[], None]


SchedulerMessage = Submit | Abort | AtBoundary


def scheduler_inbox_limit(max_open: int, max_num_seqs: int) -> int:
    """Between two drains a request that was open at the first can add one Abort (`OpenRequest.aborted`), and a request
    that took the place of one that ended meanwhile can add a Submit and an Abort: three for each place. A stop string
    adds one Abort for a running sequence in a step, and at most two steps are read between two drains. One AtBoundary
    is under way at a time."""
    return 3 * max_open + 2 * max_num_seqs + 1


@attrs.frozen(kw_only=True)
class Opened:
    """To the detokenizer: tokens of this request will come. Put before the scheduler hears of it."""

    request: OpenRequest
    params: SamplingParams
    decoders: tuple[IncrementalDecoder, ...]
    """One for each answer."""


DetokenizerMessage = Opened | StepEvents


def detokenizer_inbox_limit(max_open: int) -> int:
    """Each open request is opened once. The loop says at most two things between two of its waits, and the detokenizer,
    which waits for nothing but its inbox, runs before the loop has waited twice: four messages, and as many in reserve.
    """
    return max_open + 8
