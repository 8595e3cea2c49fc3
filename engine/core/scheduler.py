"""The scheduler: decides, once per step, who computes how many tokens, and learns what came of it.

A state machine without time, threads or tensors: `submit`, `abort`, `plan(now)`, `commit(result)`, `take_events()`. Its
laws S1 to S8 are in docs/scheduler-spec.md and property_tests/. There is no prefill phase: a sequence has a number of
computed tokens and a number of known ones, and a plan brings the first nearer to the second, running sequences first,
then admission from the waiting queue.

A plan may be made while earlier ones are still on the device. What such a plan cannot know it does not need: a
decoding sequence computes its next token whatever that token is. A sequence whose end shows only when a step lands is
dropped then, and what later steps in flight computed for it is no one's (`Sequence.id` is not reused).
"""

from collections import deque

import attrs

from ...kvcache.manager import KVCacheManager
from .draft import Draft
from .events import Admitted, Finished, FinishReason, StepEvents
from .ids import RequestId, SequenceId, TokenId
from .plan import StepPlan, StepResult
from .policy import FcfsPolicy, Policy
from .request import Request, Sequence, State, new_sequence


@attrs.frozen(kw_only=True)
class SchedulerConfig:
    """The limits of a step. See `EngineConfig` for what each means."""

    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int = 0


@attrs.define
class SchedulerStats:
    """Counters since the start; they only grow."""

    num_preemptions: int = 0
    num_scheduled_tokens: int = 0
    num_steps: int = 0
    prefix_queries: int = 0
    """Tokens of admitted prompts that were looked up in the prefix index."""
    prefix_hits: int = 0
    """Of these, the tokens that were found."""
    prompt_tokens: int = 0
    generation_tokens: int = 0


@attrs.frozen
class _InFlight:
    """A step that has been planned and not committed: which prompts' chunks land with it."""

    step: int
    chunks: tuple[tuple[Sequence, SequenceId, int], ...]
    """A sequence, the id it had, and its computed tokens once this step has landed."""


class Scheduler:
    """One engine's scheduler. It owns its sequences and their blocks; the cache is shared with nobody else."""

    def __init__(self, config: SchedulerConfig, cache: KVCacheManager, policy: Policy | None = None) -> None:
        self.stats = SchedulerStats()
        self._config = config
        self._cache = cache
        self._waiting: Policy = policy if policy is not None else FcfsPolicy()
        self._requests: dict[RequestId, Sequence] = {}
        self._batch: dict[SequenceId, Sequence] = {}  # everyone the device holds, or held in a step in flight
        self._decoding: list[Sequence] = []
        self._prefilling: list[Sequence] = []
        self._left: list[SequenceId] = []  # to be told to the device with the next plan
        self._in_flight: deque[_InFlight] = deque()
        self._num_arrivals = 0
        self._next_id = 1
        self._step = 0
        self._admitted: list[Admitted] = []
        self._token_requests: list[RequestId] = []
        self._token_ids: list[TokenId] = []
        self._finished: list[Finished] = []

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks and get tokens."""
        return len(self._decoding) + len(self._prefilling)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_in_flight(self) -> int:
        """Steps that have been planned and not committed."""
        return len(self._in_flight)

    @property
    def has_unfinished(self) -> bool:
        return bool(self._requests)

    def submit(self, request: Request) -> None:
        """Let a request wait. Its id must not be open."""
        if request.id in self._requests:
            raise AssertionError(f"request {request.id} is open already")
        self._num_arrivals += 1
        blocks = self._cache.open(extra_keys=request.extra_keys)
        sequence = new_sequence(request, arrival=self._num_arrivals, blocks=blocks)
        self._requests[request.id] = sequence
        self._waiting.push(sequence)

    def abort(
        self, request_id: RequestId, reason: FinishReason = FinishReason.ABORT, *, message: str | None = None
    ) -> None:
        """End a request now: no later plan names it, its blocks are back (those that a step in flight names, once it
        has landed), and its terminal event is said. An id that is not open is ignored: the request ended by itself."""
        sequence = self._requests.get(request_id)
        if sequence is not None:
            self._end(
                sequence,
                Finished(
                    request=request_id, reason=reason, message=message, num_output_tokens=sequence.num_output_tokens
                ),
            )

    def plan(self, now: float) -> StepPlan | None:
        """Decide the next step. None: nothing can run before a step in flight lands, or before somebody is submitted.

        `now` is in seconds, on the clock of `Request.arrival_time`; it never goes backwards.
        """
        draft = Draft(budget=self._config.max_num_batched_tokens)
        if not self._grow_decodes(draft):
            return None
        self._grow_prefills(draft)
        if not draft.short_of_blocks:
            self._admit(draft)
        if not draft.num_tokens:
            self._left.extend(draft.left)
            return None
        return self._seal(draft)

    def commit(self, result: StepResult, now: float) -> None:
        """Take a step's tokens in. Results come in the order of the plans."""
        landed = self._in_flight.popleft()
        if landed.step != result.step:
            raise AssertionError(f"the result of step {result.step} came where that of step {landed.step} was due")
        self._cache.land(result.step)
        for sequence, sequence_id, num_computed in landed.chunks:
            if sequence.id == sequence_id and sequence.state is not State.ENDED:  # still that stay in the batch
                self._cache.store(sequence.blocks, sequence.tokens, num_computed)
        block_size = self._cache.block_size
        num_accepted = 0
        for sequence_id, token in zip(result.sequences, result.token_ids, strict=True):
            sequence = self._batch.get(sequence_id)
            if sequence is None:
                continue  # it ended, or was preempted, while the step was in flight
            tokens = sequence.tokens
            if len(tokens) % block_size == 0:  # the step wrote the last slot of a block
                self._cache.store(sequence.blocks, tokens, len(tokens))
            tokens.append(token)
            num_accepted += 1
            if token in sequence.end_tokens and sequence.num_output_tokens >= sequence.request.params.min_tokens:
                self._end_by_token(sequence, token)
                continue
            self._token_requests.append(sequence.request.id)
            self._token_ids.append(token)
            if len(tokens) >= sequence.most_tokens:
                self._end(
                    sequence,
                    Finished(
                        request=sequence.request.id,
                        reason=FinishReason.LENGTH,
                        num_output_tokens=sequence.num_output_tokens,
                    ),
                )
        self.stats.generation_tokens += num_accepted
        for sequence_id, message in result.failed:
            sequence = self._batch.get(sequence_id)
            if sequence is not None:
                self.abort(sequence.request.id, FinishReason.ERROR, message=message)

    def take_events(self) -> StepEvents:
        """All that has happened to requests since the last call."""
        events = StepEvents(
            step=self._step,
            admitted=tuple(self._admitted),
            requests=tuple(self._token_requests),
            token_ids=tuple(self._token_ids),
            finished=tuple(self._finished),
        )
        for column in (self._admitted, self._token_requests, self._token_ids, self._finished):
            column.clear()
        return events

    # Planning: decodes first, then prompts, then admission.

    def _grow_decodes(self, draft: Draft) -> bool:
        """Give every decoding sequence its token. False: blocks are short, and steps in flight may yet free some."""
        needy = [sequence for sequence in self._decoding if sequence.num_computed >= sequence.limit]
        if needy and self._in_flight:
            growing = sum(sequence.num_computed + 1 < sequence.most_tokens for sequence in needy)
            if growing * len(self._cache.groups) > self._cache.num_free_blocks:
                return False
        needy.sort(key=self._waiting.rank)
        for sequence in needy:
            if sequence.state is State.DECODING:  # not preempted a moment ago
                self._grow_decode(sequence, draft)
        for sequence in self._decoding:
            sequence.num_computed += 1
        draft.budget -= len(self._decoding)
        draft.num_tokens += len(self._decoding)
        return True

    def _grow_decode(self, sequence: Sequence, draft: Draft) -> None:
        num_tokens = sequence.num_computed + 1
        if num_tokens >= sequence.most_tokens:  # its last token is in flight
            sequence.state = State.CLOSING
            self._decoding.remove(sequence)
            draft.left.append(_id(sequence))
            return
        writes = self._cache.reserve(sequence.blocks, num_tokens)
        while writes is None:
            draft.short_of_blocks = True
            victim = max((*self._decoding, *self._prefilling), key=self._waiting.rank)
            self._preempt(victim, draft)
            if victim is sequence:
                return
            writes = self._cache.reserve(sequence.blocks, num_tokens)
        if writes:
            draft.writes.append((sequence, writes))
        self._set_limit(sequence, num_tokens)

    def _grow_prefills(self, draft: Draft) -> None:
        """Share what is left of the budget among the prompts under way, in the order of their ranks."""
        for sequence in sorted(self._prefilling, key=self._waiting.rank):
            if sequence.state is not State.PREFILLING:
                continue
            length = self._chunk(sequence, sequence.num_computed, draft.budget)
            if length and not self._grow_prefill(sequence, length, draft):
                draft.short_of_blocks = True
                length = 0
            if not length:
                draft.chunks.append((sequence, 0))

    def _grow_prefill(self, sequence: Sequence, length: int, draft: Draft) -> bool:
        """Find blocks for a chunk, a shorter one if need be; worse sequences give way before it must rest."""
        while True:
            for attempt in (length, self._coverable(sequence), 1):
                if 0 < attempt <= length:
                    writes = self._cache.reserve(sequence.blocks, sequence.num_computed + attempt)
                    if writes is not None:
                        if writes:
                            draft.writes.append((sequence, writes))
                        draft.grant(sequence, attempt)
                        return True
            victim = max((*self._decoding, *self._prefilling), key=self._waiting.rank)
            if victim is sequence or self._in_flight:
                return False
            self._preempt(victim, draft, refund=victim.state is State.DECODING)

    def _admit(self, draft: Draft) -> None:
        """Let the first of the waiting in, as long as sequences, budget and blocks last."""
        promised = sum(self._blocks_to_come(sequence) for sequence in self._prefilling)
        while draft.budget > 0 and self.num_running < self._config.max_num_seqs:
            sequence = self._waiting.peek()
            if sequence is None:
                return
            match = self._cache.match(sequence.blocks, sequence.tokens)
            length = self._chunk(sequence, match.num_tokens, draft.budget)
            # The whole prompt must fit beside what the prompts under way still need, or they would preempt each other.
            # Alone it needs no such room: the pool holds one sequence of any length, in windows if not at once.
            if self.num_running and not self._cache.fits(match, len(sequence.tokens), spare=promised):
                return
            if not self._cache.admit(sequence.blocks, match, match.num_tokens + length):
                return
            sequence.state = State.PREFILLING
            sequence.num_computed = match.num_tokens
            sequence.id = SequenceId(self._next_id)
            self._next_id += 1
            self._waiting.remove(sequence)
            self._batch[sequence.id] = sequence
            self._prefilling.append(sequence)
            draft.joined.append(sequence)
            draft.grant(sequence, length)
            promised += self._blocks_to_come(sequence)
            self._note_admission(sequence, match.num_tokens)

    def _note_admission(self, sequence: Sequence, num_cached_tokens: int) -> None:
        if sequence.was_admitted:
            return
        sequence.was_admitted = True
        self.stats.prefix_queries += len(sequence.tokens)
        self.stats.prefix_hits += num_cached_tokens
        self.stats.prompt_tokens += len(sequence.tokens)
        self._admitted.append(Admitted(request=sequence.request.id, num_cached_tokens=num_cached_tokens))

    def _seal(self, draft: Draft) -> StepPlan:
        self._step += 1
        draft.left[:0] = self._left
        self._left.clear()
        plan = draft.seal(step=self._step, num_sequences=self.num_running, copies=self._cache.take_copies())
        self._cache.begin_step(self._step)
        landing: list[tuple[Sequence, SequenceId, int]] = []
        for sequence, length in draft.chunks:
            sequence.num_computed += length
            if length:
                landing.append((sequence, _id(sequence), sequence.num_computed))
            if sequence.num_computed == len(sequence.tokens):
                sequence.state = State.DECODING
                self._prefilling.remove(sequence)
                self._decoding.append(sequence)
                self._set_limit(sequence, sequence.num_computed)
        self._in_flight.append(_InFlight(self._step, tuple(landing)))
        self.stats.num_steps += 1
        self.stats.num_scheduled_tokens += plan.num_tokens
        return plan

    # Small arithmetic.

    def _chunk(self, sequence: Sequence, num_computed: int, budget: int) -> int:
        """How many of its known tokens the budget and the threshold allow in this step."""
        length = min(len(sequence.tokens) - num_computed, budget)
        threshold = self._config.long_prefill_token_threshold
        return min(length, threshold) if threshold else length

    def _coverable(self, sequence: Sequence) -> int:
        """The longest chunk that the free blocks could hold, at least."""
        block_size = self._cache.block_size
        free = self._cache.num_free_blocks // len(self._cache.groups)
        return -(-sequence.num_computed // block_size) * block_size - sequence.num_computed + free * block_size

    def _blocks_to_come(self, sequence: Sequence) -> int:
        """Blocks that a prompt under way will still ask for."""
        block_size = self._cache.block_size
        missing = -(-len(sequence.tokens) // block_size) - -(-sequence.blocks.num_tokens // block_size)
        return missing * len(self._cache.groups)

    def _set_limit(self, sequence: Sequence, num_tokens: int) -> None:
        block_size = self._cache.block_size
        sequence.limit = min(-(-num_tokens // block_size) * block_size, sequence.most_tokens - 1)

    # Leaving: by preemption, or for good.

    def _preempt(self, sequence: Sequence, draft: Draft, *, refund: bool = False) -> None:
        """Give all its blocks back and let it wait where it was; what it computed counts no more."""
        self._leave(sequence)
        draft.withdraw(sequence)
        if refund:
            draft.budget += 1
            draft.num_tokens -= 1
        sequence.state = State.WAITING
        sequence.id = None
        sequence.num_computed = 0
        sequence.num_preemptions += 1
        self.stats.num_preemptions += 1
        self._waiting.push(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Out of the running, its blocks back."""
        if sequence.state is State.DECODING:
            self._decoding.remove(sequence)
        elif sequence.state is State.PREFILLING:
            self._prefilling.remove(sequence)
        self._cache.release(sequence.blocks)
        self._batch.pop(_id(sequence), None)

    def _end(self, sequence: Sequence, finished: Finished) -> None:
        """The one way out for good: blocks back, then the terminal event."""
        waiting = sequence.state is State.WAITING
        if not waiting:
            if sequence.state is not State.CLOSING:
                self._left.append(_id(sequence))
            self._leave(sequence)
        sequence.state = State.ENDED
        if waiting:
            self._waiting.remove(sequence)
        del self._requests[sequence.request.id]
        self._finished.append(finished)

    def _end_by_token(self, sequence: Sequence, token: TokenId) -> None:
        asked_for = token in sequence.request.params.stop_token_ids
        self._end(
            sequence,
            Finished(
                request=sequence.request.id,
                reason=FinishReason.STOP,
                stop_token=token if asked_for else None,
                num_output_tokens=sequence.num_output_tokens,
            ),
        )

    def check(self) -> None:
        """Assert what holds between calls; for tests and for a loop that idles."""
        self._cache.check()
        for sequence in (*self._decoding, *self._prefilling):
            if self._batch.get(_id(sequence)) is not sequence:
                raise AssertionError(f"a running sequence of {sequence.request.id} is not in the batch")
            if sequence.num_computed > len(sequence.blocks.tables[0]) * self._cache.block_size:
                raise AssertionError(f"{sequence.request.id} computes tokens it has no blocks for")
        if self.num_running > self._config.max_num_seqs:
            raise AssertionError(f"{self.num_running} sequences run, {self._config.max_num_seqs} may (S1)")
        if len(self._requests) < self.num_running + self.num_waiting:
            raise AssertionError("a sequence runs or waits that no open request owns")


def _id(sequence: Sequence) -> SequenceId:
    assert sequence.id is not None, "it has not joined the batch"
    return sequence.id
