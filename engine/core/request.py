"""A request as it enters the scheduler, and the scheduler's own record of the sequences it runs.

Token bookkeeping of a sequence, as half-open ranges of positions:

    [0, cached) [cached, computed) [computed, known) [known, most_tokens)
     spared by    K and V written    to be computed    not sampled yet
     a prefix hit (or in a planned
                  step)

A decoding sequence has `computed == known - 1` before a step: its last token is still to be computed.
"""

import enum

import attrs

from ...kvcache.sequence import SequenceBlocks
from .ids import RequestId, SequenceId, TokenId
from .params import SamplingParams


@attrs.frozen(kw_only=True)
class Request:
    """What `Scheduler.submit` takes: checked already, its prompt tokenized, its limits those of the model."""

    id: RequestId
    prompt_token_ids: tuple[TokenId, ...]
    params: SamplingParams
    """`max_tokens` is set: at least 1, and prompt and answer together fit the model."""
    seed: int
    end_token_ids: tuple[TokenId, ...] = ()
    """The model's own end tokens (left out of account when `params.ignore_eos`)."""
    arrival_time: float = 0.0
    """Seconds, on the clock that `Scheduler.plan` is given."""
    extra_keys: tuple[str | int | bytes, ...] = ()
    """Joined into the prefix hash: requests with other keys never share blocks (cache salt, adapter)."""


class State(enum.Enum):
    """Where a sequence is. Each arrow is one method of the scheduler.

    WAITING ──admit──▶ PREFILLING ──▶ DECODING ──▶ ENDED
       ▲                   │             │  └──▶ CLOSING ──▶ ENDED    (its last token is in flight)
       └──────preempt──────┴─────────────┘
    """

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    CLOSING = "closing"
    ENDED = "ended"


@attrs.define(eq=False, slots=True)
class Sequence:
    """One run of tokens and its blocks. Owned by the scheduler; `blocks` is given back whenever it stops running."""

    request: Request
    arrival: int
    """Counts submissions: the order within a priority, kept over preemptions."""
    blocks: SequenceBlocks
    tokens: list[TokenId]
    """Every known token."""
    end_tokens: frozenset[TokenId]
    most_tokens: int
    """Prompt and longest answer together."""
    state: State = State.WAITING
    id: SequenceId | None = None
    """Its number in the device's batch: a new one each time it joins, so that a late result of an earlier stay is no
    one's."""
    num_computed: int = 0
    """Tokens whose K and V are written once every planned step has landed."""
    limit: int = 0
    """`num_computed` may grow up to here without asking the cache for a block and without being the last token."""
    was_admitted: bool = False
    num_preemptions: int = 0

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - len(self.request.prompt_token_ids)


def new_sequence(request: Request, *, arrival: int, blocks: SequenceBlocks) -> Sequence:
    ends = set(request.params.stop_token_ids)
    if not request.params.ignore_eos:
        ends.update(request.end_token_ids)
    assert request.params.max_tokens is not None, "the engine sets max_tokens before it submits"
    return Sequence(
        request=request,
        arrival=arrival,
        blocks=blocks,
        tokens=list(request.prompt_token_ids),
        end_tokens=frozenset(TokenId(token) for token in ends),
        most_tokens=len(request.prompt_token_ids) + request.params.max_tokens,
    )
