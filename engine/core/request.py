"""A request as it enters the scheduler, and the scheduler's own record of the sequences it runs.

Token bookkeeping of a sequence, as half-open ranges of positions:

    [0, cached) [cached, computed) [computed, known) [known, most_tokens)
     spared by    K and V written    to be computed    not sampled yet
     a prefix hit (or in a planned
                  step)

A decoding sequence has `computed == known - 1` before a step: its last token is still to be computed.
"""

import enum
from typing import TYPE_CHECKING

import attrs

from ...kvcache.sequence import SequenceBlocks
from .ids import RequestId, SequenceId, TokenId
from .logprobs import PromptLogprobs
from .params import SamplingParams
from .pooling import Pooling
from .repetition import RepetitionDetector

if TYPE_CHECKING:
    from .beams import BeamSearch


@attrs.frozen(kw_only=True)
class Request:
    """What `Scheduler.submit` takes: checked already, its prompt tokenized, its limits those of the model."""

    id: RequestId
    prompt_token_ids: tuple[TokenId, ...]
    params: SamplingParams
    """`max_tokens` is set: at least 1, and prompt and answer together fit the model."""
    seed: int
    pooling: Pooling | None = None
    """Generate nothing: the prompt becomes a vector. Then of `params` only the defaults, and `max_tokens` 1."""
    end_token_ids: tuple[TokenId, ...] = ()
    """The model's own end tokens (left out of account when `params.ignore_eos`)."""
    arrival_time: float = 0.0
    """Seconds, on the clock that `Scheduler.plan` is given."""
    extra_keys: tuple[str | int | bytes, ...] = ()
    """Joined into the prefix hash: requests with other keys never share blocks (cache salt, adapter)."""
    priority: int = 0
    """Lower is served first, under the priority policy."""
    fairness_key: str = ""
    """Whose share of the tokens this counts to, under the fair policy."""
    deadline: float | None = None
    """When it is ended whatever it is doing, with reason `timeout`. Same clock."""
    admit_by: float | None = None
    """When it is ended if it has never been admitted (`Finished.never_admitted`). Same clock."""


class State(enum.Enum):
    """Where a sequence is. Each arrow goes through `RunningSet`, but for the end of one that waits.

    WAITING ──admit──▶ PREFILLING ──▶ DECODING ──▶ ENDED
       ▲                │   │  ▲       │ ▲  │ └──▶ CLOSING ──▶ ENDED    (its last token is in flight)
       │                │   └──┼──▶ PAUSED ─┘                          (its next token waits for a choice)
       └────preempt─────┴──────┴───────┘
    DECODING ──▶ PREFILLING, where a grammar has forced tokens (`Sequence.jumps`)
    """

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    PAUSED = "paused"
    CLOSING = "closing"
    ENDED = "ended"


@attrs.define(eq=False, slots=True)
class Sequence:
    """One run of tokens and its blocks. Owned by the scheduler; `blocks` is given back whenever it stops running."""

    group: "Group"
    choice: int
    """Which of the request's answers this is."""
    blocks: SequenceBlocks
    tokens: list[TokenId]
    """Every known token."""
    state: State = State.WAITING
    id: SequenceId | None = None
    """Its number in the device's batch: a new one each time it joins, so that a late result of an earlier stay is no
    one's."""
    num_computed: int = 0
    """Tokens whose K and V are written once every planned step has landed."""
    limit: int = 0
    """`num_computed` may grow up to here without asking the cache for a block and without being the last token."""
    jumps: bool = False
    """While it is PREFILLING: it goes on with an answer, over tokens that its grammar has forced."""
    num_slots: int = 1
    """How many sequences it becomes when its prompt is computed, or a beam may become in the next round (S1)."""
    repetition: RepetitionDetector | None = None

    @property
    def request(self) -> Request:
        return self.group.request

    @property
    def device_id(self) -> SequenceId:
        """Its id; only for one that runs."""
        if self.id is None:
            raise AssertionError(f"a sequence of {self.request.id} is not in the batch")
        return self.id

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - len(self.request.prompt_token_ids)


@attrs.define(eq=False, slots=True)
class Group:
    """An open request and its live sequences: one until the prompt is computed, then one for each answer."""

    request: Request
    arrival: int
    """Counts submissions: the order within a priority, kept over preemptions."""
    end_tokens: frozenset[TokenId]
    most_tokens: int
    """Prompt and longest answer together."""
    sequences: list[Sequence] = attrs.field(factory=list)
    was_admitted: bool = False
    beams: "BeamSearch | None" = None
    next_prompt_logprob: int = 1
    """The first position of the prompt whose log-probabilities have not been said, where they are asked for."""

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Some are still to come: the prompt must be computed for them, whatever the cache holds."""
        asked = self.request.params.prompt_logprobs is not None
        return asked and self.next_prompt_logprob < len(self.request.prompt_token_ids)

    @property
    def needs_whole_prompt(self) -> bool:
        """Something is wanted of every position of the prompt: none may be spared by the cache."""
        pooling = self.request.pooling
        return self.wants_prompt_logprobs or (pooling is not None and pooling.needs_every_state)

    def take_prompt_logprobs(self, said: PromptLogprobs) -> None:
        start, entries = said
        if start != self.next_prompt_logprob:
            raise AssertionError(f"prompt logprobs came from {start} on where {self.next_prompt_logprob} was due")
        self.next_prompt_logprob += len(entries)


def new_group(request: Request, *, arrival: int, blocks: SequenceBlocks) -> Group:
    """The record of a request that has just come, with its one sequence."""
    params = request.params
    ends = set(params.stop_token_ids)
    if not params.ignore_eos or params.grammar is not None:
        ends.update(request.end_token_ids)
    if params.max_tokens is None:
        raise AssertionError("the engine sets max_tokens before it submits")
    group = Group(
        request=request,
        arrival=arrival,
        end_tokens=frozenset(TokenId(token) for token in ends),
        most_tokens=len(request.prompt_token_ids) + params.max_tokens,
    )
    tokens = list(request.prompt_token_ids)
    detector = new_detector(request)
    group.sequences.append(
        Sequence(group=group, choice=0, blocks=blocks, tokens=tokens, num_slots=params.n, repetition=detector)
    )
    return group


def new_detector(request: Request) -> RepetitionDetector | None:
    """For an answer that has no token yet."""
    asked = request.params.repetition_detection
    return None if asked is None else RepetitionDetector(asked)
