"""The scheduler: decides, once per step, who computes how many tokens, and learns what came of it.

A state machine without time, threads or tensors: `submit`, `abort`, `plan(now)`, `commit(result)`, `take_events()`. Its
laws S1 to S8 are in property_tests/test_scheduler.py. There is no prefill phase: a sequence has a number of computed
tokens and a number of known ones, and a plan brings the first nearer to the second.

A plan may be made while earlier ones are still on the device. What such a plan cannot know it does not need: a
decoding sequence computes its next token whatever that token is. A sequence whose end shows only when a step lands is
dropped then, and what later steps in flight computed for it is no one's (`Sequence.id` is not reused).
"""

import math
from collections import deque

import attrs

from ...kvcache.manager import KVCacheManager
from .beams import BeamSearch, Candidates
from .deadlines import Deadlines
from .events import Finished, FinishReason, StepEvents
from .ids import RequestId, SequenceId, TokenId
from .logprobs import TokenLogprobs
from .outbox import Outbox
from .plan import StepPlan, StepResult
from .planner import Planner, SchedulerConfig
from .policy import FcfsPolicy, Policy
from .request import Group, Request, Sequence, State, new_detector, new_group
from .running import RunningSet
from .stats import SchedulerStats

__all__ = ["Scheduler", "SchedulerConfig", "SchedulerStats"]


@attrs.frozen
class _InFlight:
    """A step that has been planned and not committed: which prompts' chunks land with it."""

    step: int
    planned_at: float
    chunks: tuple[tuple[Sequence, SequenceId, int], ...]
    """A sequence, the id it had, and its computed tokens once this step has landed."""


class Scheduler:
    """One engine's scheduler. It owns its sequences and their blocks; the cache is shared with nobody else."""

    def __init__(self, config: SchedulerConfig, cache: KVCacheManager, policy: Policy | None = None) -> None:
        self.stats = SchedulerStats()
        self.config = config
        self._cache = cache
        self._waiting: Policy = policy if policy is not None else FcfsPolicy()
        self._running = RunningSet()
        self._outbox = Outbox()
        self._planner = Planner(
            config,
            cache=cache,
            waiting=self._waiting,
            running=self._running,
            outbox=self._outbox,
            stats=self.stats,
            expire=lambda sequence: self.abort(sequence.request.id, FinishReason.TIMEOUT),
        )
        self._groups: dict[RequestId, Group] = {}
        self._deadlines = Deadlines(self._groups)
        self._in_flight: deque[_InFlight] = deque()
        self._samples: dict[SequenceId, list[tuple[TokenId, TokenLogprobs | None]]] = {}
        self._num_arrivals = 0
        self._step = 0
        self._fastest_step_s = math.inf  # none has landed yet

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_in_flight(self) -> int:
        """Steps that have been planned and not committed."""
        return len(self._in_flight)

    @property
    def has_unfinished(self) -> bool:
        return bool(self._groups)

    @property
    def next_deadline(self) -> float | None:
        """When `plan` or `expire` must be called at the latest, though nothing runs; None: nobody has a deadline."""
        return self._deadlines.next

    @property
    def longest_context(self) -> int:
        """The most tokens that any running sequence has computed."""
        return max((sequence.num_computed for sequence in self._running), default=0)

    def set_limits(self, limits: SchedulerConfig) -> None:
        """Another token budget from the next plan on; `max_num_seqs` must stay as it is."""
        self.config = self._planner.config = limits

    def submit(self, request: Request) -> None:
        """Let a request wait. Its id must not be open. One that could never run gets its terminal event at once."""
        if request.id in self._groups:
            raise AssertionError(f"request {request.id} is open already")
        self._num_arrivals += 1
        blocks = self._cache.open(extra_keys=request.extra_keys)
        group = new_group(request, arrival=self._num_arrivals, blocks=blocks)
        if request.params.use_beam_search:
            group.beams = BeamSearch.of(group)
        self._groups[request.id] = group
        self._waiting.push(group.sequences[0])
        if (message := self._why_never(group)) is not None:
            self.abort(request.id, FinishReason.ERROR, message=message)
        else:
            self._deadlines.add(group)

    def abort(
        self,
        request_id: RequestId,
        reason: FinishReason = FinishReason.ABORT,
        *,
        choice: int | None = None,
        message: str | None = None,
        never_admitted: bool = False,
    ) -> None:
        """End a request now, or one answer of it: no later plan names it, its blocks are back (those that a step in
        flight names, once that has landed), and its end is said. What is not open is ignored: it ended by itself."""
        group = self._groups.get(request_id)
        if group is None:
            return
        for sequence in tuple(group.sequences):
            if choice is None or sequence.choice == choice or group.beams is not None:
                self._end(sequence, reason, message=message, never_admitted=never_admitted)

    def expire(self, now: float) -> None:
        """End whose time is over. `plan` does it too; alone, it is for a time in which nothing can be planned."""
        for request_id, never_admitted in self._deadlines.due(now):
            self.abort(request_id, FinishReason.TIMEOUT, never_admitted=never_admitted)

    def plan(self, now: float) -> StepPlan | None:
        """Decide the next step. None: nothing can run before a step in flight lands, or before somebody is submitted.

        An open request whose deadline has come is ended. One that has not begun is not let in, but ended, when it could
        not be through by its deadline even if each step were as fast as the fastest so far.

        `now` is in seconds, on the clock of `Request.arrival_time`; it never goes backwards.
        """
        self.expire(now)
        made = self._planner.plan(
            self._step + 1,
            len(self._in_flight),
            now=now,
            fastest_step_s=0.0 if math.isinf(self._fastest_step_s) else self._fastest_step_s,
        )
        if made is None:
            return None
        plan, landing = made
        self._step = plan.step
        self._cache.begin_step(plan.step)
        chunks = tuple((sequence, sequence.device_id, sequence.num_computed) for sequence, _ in landing)
        self._in_flight.append(_InFlight(plan.step, now, chunks))
        return plan

    def commit(self, result: StepResult, now: float) -> None:
        """Take a step's tokens in. Results come in the order of the plans."""
        landed = self._in_flight.popleft()
        if landed.step != result.step:
            raise AssertionError(f"the result of step {result.step} came where that of step {landed.step} was due")
        self._fastest_step_s = min(self._fastest_step_s, now - landed.planned_at)
        self._cache.land(result.step)
        for sequence, sequence_id, num_computed in landed.chunks:
            if sequence.id == sequence_id:  # still that stay in the batch
                self._cache.store(sequence.blocks, sequence.tokens, num_computed)
        by_id = self._running.by_id
        num_wasted = 0
        for sampled_id, tokens, log_probabilities in result.candidates:
            if (beam := by_id.get(sampled_id)) is not None:
                self._take_candidates(beam, (tokens, log_probabilities))
        for prompt_id, prompt_logprobs in result.prompt_logprobs:
            if (prompt := by_id.get(prompt_id)) is not None:
                prompt.group.take_prompt_logprobs(prompt_logprobs)
                self._outbox.prompt_logprobs.append((prompt.request.id, prompt_logprobs))
        all_logprobs = result.logprobs or (None,) * len(result.sequences)
        for sampled_id, token, logprobs in zip(result.sequences, result.token_ids, all_logprobs, strict=True):
            found = by_id.get(sampled_id)
            if found is None:  # it ended, or was preempted, while the step was in flight
                num_wasted += 1
            elif found.num_slots > 1:
                self._sample(found, token, logprobs)
            else:
                self._accept(found, token, logprobs)
        self.stats.wasted_tokens += num_wasted
        self.stats.generation_tokens += len(result.sequences) - num_wasted
        for sequence_id, message in result.failed:
            if (failed := by_id.get(sequence_id)) is not None:
                self.abort(failed.request.id, FinishReason.ERROR, message=message)

    def requeue(self, *, keep_cache: bool) -> None:
        """The steps in flight are lost, and the device's batch with them: everyone who ran waits again, each in its
        place, with nothing computed; known tokens stay known. `keep_cache`: the device still holds what was computed
        before those steps (it failed in one; it was not replaced), so cached prefixes may be found.

        The device must have forgotten its batch when it is given the next plan, whose number goes on from here.
        """
        for sequence in tuple(self._running.by_id.values()):
            self._planner.put_back(sequence)
        self._forget_flight()
        if not (keep_cache or self._cache.reset()):
            raise AssertionError("a block is held though nobody runs")

    def fail_running(self, message: str) -> None:
        """The steps in flight have failed for a reason of their own: the requests that run end as errors, those that
        wait do not. The device must have forgotten its batch when it is given the next plan."""
        for sequence in tuple(self._running.by_id.values()):
            self.abort(sequence.request.id, FinishReason.ERROR, message=message)
        self._forget_flight()

    def take_events(self) -> StepEvents:
        """All that has happened to requests since the last call."""
        return self._outbox.take(self._step)

    def _forget_flight(self) -> None:
        if self._in_flight:
            self._cache.land(self._in_flight[-1].step)
        self._in_flight.clear()
        self._samples.clear()
        self._running.left.clear()
        self._cache.take_copies()

    def _why_never(self, group: Group) -> str | None:
        """Why the request could never run here; None when it can."""
        num_answers = group.request.params.n
        if num_answers > self.config.max_num_seqs:
            return f"n ({num_answers}) is more than the {self.config.max_num_seqs} sequences that run at once."
        if group.beams is None:
            return None
        # All beams of a request must be there at once before any can go on.
        blocks = num_answers * -(-group.most_tokens // self._cache.block_size) * len(self._cache.groups)
        if blocks > self._cache.num_blocks:
            return f"{num_answers} beams of {group.most_tokens} tokens need more than the whole KV cache."
        return None

    # Tokens

    def _accept(self, sequence: Sequence, token: TokenId, logprobs: TokenLogprobs | None) -> None:
        """One more token is known; it may be the last."""
        tokens = sequence.tokens
        group = sequence.group
        params = group.request.params
        if len(tokens) % self._cache.block_size == 0:  # the step wrote the last slot of a block
            self._cache.store(sequence.blocks, tokens, len(tokens))
        tokens.append(token)
        # A grammar lets an end token come only where the answer is complete.
        if token in group.end_tokens and (sequence.num_output_tokens >= params.min_tokens or params.grammar):
            self._end(sequence, FinishReason.STOP, end_token=token, end_logprobs=logprobs)
            return
        self._outbox.token(group.request.id, token, sequence.choice, logprobs)
        if sequence.repetition is not None and sequence.repetition.push(tokens, len(group.request.prompt_token_ids)):
            self._end(sequence, FinishReason.REPETITION)
        elif len(tokens) >= group.most_tokens:
            self._end(sequence, FinishReason.LENGTH)

    def _sample(self, sequence: Sequence, token: TokenId, logprobs: TokenLogprobs | None) -> None:
        """One of several first tokens; with the last of them the sequence forks, sharing the partial block too."""
        samples = self._samples.setdefault(sequence.device_id, [])
        samples.append((token, logprobs))
        if len(samples) < sequence.num_slots:
            return
        del self._samples[sequence.device_id]
        sequence.num_slots = 1
        self._running.move(sequence, State.DECODING)
        sequence.limit = sequence.num_computed  # ask the cache before writing: the last block is shared now
        answers = [sequence, *(self._fork(sequence, choice, State.DECODING) for choice in range(1, len(samples)))]
        for answer, sampled in zip(answers, samples, strict=True):
            self._accept(answer, *sampled)

    def _fork(self, sequence: Sequence, choice: int, state: State) -> Sequence:
        """A second sequence with the same past, which shares every block; it joins the batch with the next plan."""
        fork = Sequence(
            group=sequence.group,
            choice=choice,
            blocks=self._cache.fork(sequence.blocks),
            tokens=list(sequence.tokens),
            num_computed=sequence.num_computed,
            limit=sequence.num_computed,
            repetition=new_detector(sequence.request),
        )
        sequence.group.sequences.append(fork)
        self._running.enter(fork, state)
        return fork

    def _take_candidates(self, beam: Sequence, candidates: Candidates) -> None:
        """A beam has reported; once all have, the best continuations become the beams of the next round."""
        search = beam.group.beams
        if search is None:
            raise AssertionError(f"{beam.request.id} searches no beams")
        self.stats.generation_tokens += 1
        if not search.report(beam, candidates):
            return
        parents = tuple(beam.group.sequences)
        for parent in parents:
            if len(parent.tokens) % self._cache.block_size == 0:
                self._cache.store(parent.blocks, parent.tokens, len(parent.tokens))
        continuations = search.advance()
        if not continuations:
            self._end_search(beam.group, search)
            return
        beams = []
        for choice, continuation in enumerate(continuations):
            fork = self._fork(continuation.parent, choice, State.PREFILLING)
            fork.tokens.append(continuation.token)
            beams.append(fork)
        # A round may leave fewer beams than the next one makes: together they hold the slots of all.
        beams[0].num_slots = beam.request.params.n - len(beams) + 1
        search.start(beams, [continuation.log_probability for continuation in continuations])
        for parent in parents:  # after the forks, so that the last heir of a block writes it in place
            self._drop(parent)

    def _end_search(self, group: Group, search: BeamSearch) -> None:
        """All at once: the answers' tokens, then their ends, best first."""
        for sequence in tuple(group.sequences):
            self._drop(sequence)
        del self._groups[group.request.id]
        for choice, answer in enumerate(search.answers):
            for token in answer.tokens:
                self._outbox.token(group.request.id, token, choice)
            finished = Finished(
                request=group.request.id,
                reason=FinishReason.STOP if answer.by_end_token else FinishReason.LENGTH,
                choice=choice,
                last=choice == len(search.answers) - 1,
                num_output_tokens=answer.num_tokens,
                score=answer.score,
            )
            self._outbox.finished.append(finished)

    def _drop(self, sequence: Sequence) -> None:
        """Out of its group and out of the running, its blocks back."""
        self._samples.pop(sequence.device_id, None)
        self._running.leave(sequence, State.ENDED)
        self._cache.release(sequence.blocks)
        sequence.group.sequences.remove(sequence)

    # Ends

    def _end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        *,
        end_token: TokenId | None = None,
        end_logprobs: TokenLogprobs | None = None,
        message: str | None = None,
        never_admitted: bool = False,
    ) -> None:
        """The one way out for good: blocks back, then its end is said."""
        group = sequence.group
        if sequence.state is State.WAITING:
            sequence.state = State.ENDED
            self._waiting.remove(sequence)
            group.sequences.remove(sequence)
        else:
            self._drop(sequence)
        last = not group.sequences
        if last:
            del self._groups[group.request.id]
        finished = Finished(
            request=group.request.id,
            reason=reason,
            choice=sequence.choice,
            last=last,
            stop_token=end_token if end_token in group.request.params.stop_token_ids else None,
            end_token=end_token,
            end_logprobs=end_logprobs,
            num_output_tokens=sequence.num_output_tokens,
            message=message,
            never_admitted=never_admitted,
        )
        self._outbox.finished.append(finished)

    def check(self) -> None:
        """Assert what holds between calls; for tests and for a loop that idles."""
        self._cache.check()
        for sequence in self._running:
            if self._running.by_id.get(sequence.device_id) is not sequence:
                raise AssertionError(f"a running sequence of {sequence.request.id} is not in the batch")
            if sequence.num_computed > len(sequence.blocks.tables[0]) * self._cache.block_size:
                raise AssertionError(f"{sequence.request.id} computes tokens it has no blocks for")
            if sequence not in sequence.group.sequences or sequence.request.id not in self._groups:
                raise AssertionError(f"{sequence.request.id} runs and is not open")
        if self._running.num_slots > self.config.max_num_seqs:
            raise AssertionError(f"{self._running.num_slots} sequences run, {self.config.max_num_seqs} may (S1)")
        num_live = sum(len(group.sequences) for group in self._groups.values())
        num_closing = len(self._running.by_id) - len(self._running)
        if num_live != self.num_running + self.num_waiting + num_closing:
            raise AssertionError(f"{num_live} sequences are open, {self.num_running} run and {self.num_waiting} wait")
