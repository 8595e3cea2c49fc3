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
from typing import Any

import attrs

from ...kvcache.manager import KVCacheManager
from .answers import Answers
from .beams import BeamSearch
from .deadlines import Deadlines
from .events import FinishReason, StepEvents
from .ids import RequestId, SequenceId
from .outbox import Outbox
from .plan import StepPlan, StepResult
from .planner import Planner, SchedulerConfig
from .policy import FcfsPolicy, Policy
from .request import Group, Request, Sequence, new_group
from .running import RunningSet
from .stats import SchedulerStats

RULED_OUT = (
    "What the request rules out (allowed_token_ids, bad_words, logit_bias, min_tokens, a grammar) leaves no token."
)

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
        self._answers = Answers(
            cache=cache, waiting=self._waiting, running=self._running, outbox=self._outbox, stats=self.stats
        )
        self._groups = self._answers.groups
        self._deadlines = Deadlines(self._groups)
        self._in_flight: deque[_InFlight] = deque()
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
    def groups(self) -> dict[RequestId, Group]:
        """The open requests. Read-only to others."""
        return self._groups

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

    @property
    def most_answers(self) -> int:
        """The most answers that any open request asks for. O(open requests)."""
        return max((group.request.params.n for group in self._groups.values()), default=1)

    def set_limits(self, limits: SchedulerConfig) -> None:
        """Others from the next plan on. Where fewer sequences may run than do, the worst wait again, in their places,
        once the steps in flight have landed. `max_num_seqs` must hold `most_answers`."""
        if limits.max_num_seqs < self.most_answers:
            raise AssertionError(f"an open request needs {self.most_answers} sequences at once")
        self.config = limits
        self._planner.set_limits(limits)

    def set_policy(self, policy: Policy) -> None:
        """Another order of who waits, from the next plan on; `policy` is empty. What waits keeps its arrival, and what
        runs goes on; counts that the old one kept (of a key's tokens) are gone with it."""
        waiting = self._waiting
        while (sequence := waiting.peek()) is not None:
            waiting.remove(sequence)
            policy.push(sequence)
        self._waiting = policy
        self._planner.set_policy(policy)
        self._answers.set_policy(policy)

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
            why: dict[str, Any] = {"refused": True, "param": "n", "never_admitted": True}
            self.abort(request.id, FinishReason.ERROR, message=message, **why)
        else:
            self._deadlines.add(group)

    def abort(
        self,
        request_id: RequestId,
        reason: FinishReason = FinishReason.ABORT,
        *,
        choice: int | None = None,
        message: str | None = None,
        refused: bool = False,
        param: str | None = None,
        never_admitted: bool = False,
    ) -> None:
        """End a request now, or one answer of it: no later plan names it, its blocks are back (those that a step in
        flight names, once that has landed), and its end is said. What is not open is ignored: it ended by itself."""
        group = self._groups.get(request_id)
        if group is None:
            return
        for sequence in tuple(group.sequences):
            if choice is None or sequence.choice == choice or group.beams is not None:
                self._answers.end(
                    sequence, reason, message=message, refused=refused, param=param, never_admitted=never_admitted
                )

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
        chunks = tuple((sequence, sequence.device_id, sequence.num_computed) for sequence in landing)
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
        for prompt_id, prompt_logprobs in result.prompt_logprobs:
            if (prompt := by_id.get(prompt_id)) is not None:
                prompt.group.take_prompt_logprobs(prompt_logprobs)
                self._outbox.prompt_logprobs.append((prompt.request.id, prompt_logprobs))
        for sampled_id, tokens, log_probabilities in result.candidates:
            if (beam := by_id.get(sampled_id)) is not None:
                self._answers.take_candidates(beam, (tokens, log_probabilities))
        for pooled_id, vector in result.vectors:
            if (pooled := by_id.get(pooled_id)) is not None:
                self._answers.end(pooled, FinishReason.STOP, vector=vector)
        all_logprobs = result.logprobs or (None,) * len(result.sequences)
        for sampled_id, token, logprobs in zip(result.sequences, result.token_ids, all_logprobs, strict=True):
            found = by_id.get(sampled_id)
            if found is None:  # it ended, or was preempted, while the step was in flight
                num_wasted += 1
            elif found.num_slots > 1:
                self._answers.sample(found, token, logprobs)
            else:
                self._answers.accept(found, token, logprobs)
        for sequence_id, forced in result.forced:
            if (forced_one := by_id.get(sequence_id)) is not None:
                self._answers.force(forced_one, forced)
        self.stats.wasted_tokens += num_wasted
        self.stats.generation_tokens += len(result.sequences) - num_wasted
        for sequence_id in result.ruled_out:
            if (masked := by_id.get(sequence_id)) is not None:
                param = masked.request.params.masking_param
                self.abort(masked.request.id, FinishReason.ERROR, message=RULED_OUT, refused=True, param=param)
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
        self._answers.forget_samples()
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
        if self._running.num_slots > self._planner.most_slots:
            raise AssertionError(f"{self._running.num_slots} sequences run, {self._planner.most_slots} may (S1)")
        num_live = sum(len(group.sequences) for group in self._groups.values())
        num_closing = len(self._running.by_id) - len(self._running)
        if num_live != self.num_running + self.num_waiting + num_closing:
            raise AssertionError(f"{num_live} sequences are open, {self.num_running} run and {self.num_waiting} wait")
