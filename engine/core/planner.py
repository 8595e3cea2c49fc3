"""Makes a step's plan: decodes first, then the prompts under way, then admission from the waiting queue.

Imports the core and the cache; reads no clock but the `now` it is given. It moves sequences between waiting and
running; the one that it has ended (`expire`) waits, and could not be through by its deadline.
"""

from collections.abc import Callable

import attrs

from ...kvcache.manager import KVCacheManager
from ...kvcache.sequence import PrefixMatch
from .draft import Draft
from .events import Admitted, Preempted, PreemptReason
from .outbox import Outbox
from .plan import StepPlan
from .policy import Policy
from .request import Sequence, State
from .running import RunningSet
from .stats import SchedulerStats


@attrs.frozen(kw_only=True)
class SchedulerConfig:
    """The limits of a step. See `EngineConfig` for what each means."""

    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int = 0
    prefill_tokens_beside_decodes: int = 0


class Planner:
    """One scheduler's hand that plans. `num_in_flight` steps are on the device while it does."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        cache: KVCacheManager,
        waiting: Policy,
        running: RunningSet,
        outbox: Outbox,
        stats: SchedulerStats,
        expire: Callable[[Sequence], None],
    ) -> None:
        """`expire` ends a waiting sequence that its deadline leaves no time for."""
        self.config = config
        self.most_slots = config.max_num_seqs
        """Slots that may be taken until the next plan: those of the last one where fewer are allowed since."""
        self._cache = cache
        self._waiting = waiting
        self._running = running
        self._outbox = outbox
        self._stats = stats
        self._expire = expire
        self._num_in_flight = 0
        self._gives_way = False  # somebody is to be preempted for a better one, once no step is in flight

    def set_limits(self, config: SchedulerConfig) -> None:
        """Others from the next plan on. Who runs beyond them waits again then, the worst first."""
        self.config = config
        self.most_slots = max(self.most_slots, config.max_num_seqs)

    def set_policy(self, waiting: Policy) -> None:
        """What waits is in it already."""
        self._waiting = waiting

    def plan(
        self, step: int, num_in_flight: int, *, now: float, fastest_step_s: float
    ) -> tuple[StepPlan, list[Sequence]] | None:
        """The next plan, and the sequences whose prompts' chunks land with it.

        None: nothing can run before a step in flight lands or somebody comes.
        """
        self._num_in_flight = num_in_flight
        if (self._gives_way or self._running.num_slots > self.config.max_num_seqs) and num_in_flight:
            return None
        self._gives_way = False
        self._keep_to_slots()
        draft = Draft(budget=self.config.max_num_batched_tokens)
        if not self._grow_decodes(draft):
            return None
        draft.chunks.extend((sequence, 0) for sequence in self._running.paused)
        self._grow_jumps(draft)
        if draft.num_tokens and self.config.prefill_tokens_beside_decodes:
            draft.budget = min(draft.budget, self.config.prefill_tokens_beside_decodes)
        self._grow_prefills(draft)
        if not draft.short_of_blocks:
            self._admit(draft, now, fastest_step_s)
        return self._seal(draft, step) if draft.num_tokens else None

    def _keep_to_slots(self) -> None:
        while self._running.num_slots > self.config.max_num_seqs:
            self._stats.num_preemptions += 1
            self.put_back(self._running.worst(self._waiting.rank), PreemptReason.LIMIT)
        self.most_slots = self.config.max_num_seqs

    # Decodes

    def _grow_decodes(self, draft: Draft) -> bool:
        """Give every decoding sequence its token. False: blocks are short, and steps in flight may yet free some."""
        running, cache = self._running, self._cache
        needy = [sequence for sequence in running.decoding if sequence.num_computed >= sequence.limit]
        if needy and self._num_in_flight:
            growing = sum(sequence.num_computed + 1 < sequence.group.most_tokens for sequence in needy)
            if growing * len(cache.groups) > cache.num_free_blocks:
                return False
        needy.sort(key=self._waiting.rank)
        for sequence in needy:
            if sequence.state is State.DECODING:  # not preempted a moment ago
                self._grow_decode(sequence, draft)
        for sequence in running.decoding:
            sequence.num_computed += 1
        draft.budget -= len(running.decoding)
        draft.num_tokens += len(running.decoding)
        return True

    def _grow_decode(self, sequence: Sequence, draft: Draft) -> None:
        num_tokens = sequence.num_computed + 1
        if num_tokens >= sequence.group.most_tokens:
            self._running.close(sequence)
            return
        writes = self._cache.reserve(sequence.blocks, num_tokens)
        while writes is None:
            draft.short_of_blocks = True
            victim = self._running.worst(self._waiting.rank)
            self._preempt(victim, draft)
            if victim is sequence:
                return
            writes = self._cache.reserve(sequence.blocks, num_tokens)
        if writes:
            draft.writes.append((sequence, writes))
        self._set_limit(sequence, num_tokens)

    # Prompts under way

    def _grow_jumps(self, draft: Draft) -> None:
        """Answers whose next tokens are known go on with them, before any prompt; each gets one at least (S2)."""
        jumps = sorted((s for s in self._running.prefilling if s.jumps), key=self._waiting.rank)
        for place, sequence in enumerate(jumps, 1):
            self._grow_known(sequence, max(0, draft.budget - (len(jumps) - place)), draft)

    def _grow_known(self, sequence: Sequence, budget: int, draft: Draft) -> None:
        """Give a sequence a chunk, or let it rest."""
        if sequence.state is not State.PREFILLING:
            return
        length = self._chunk(sequence, sequence.num_computed, budget)
        if length and not self._grow_prefill(sequence, length, draft):
            draft.short_of_blocks = True
            length = 0
        if not length:
            draft.chunks.append((sequence, 0))

    def _grow_prefills(self, draft: Draft) -> None:
        """Share what is left of the budget among the prompts under way, in the order of their ranks; who needs but one
        token (a beam) comes before them (S2)."""
        rank = self._waiting.rank
        prompts = [sequence for sequence in self._running.prefilling if not sequence.jumps]
        for sequence in sorted(prompts, key=lambda s: (len(s.tokens) - s.num_computed > 1, *rank(s))):
            self._grow_known(sequence, draft.budget_of(sequence), draft)

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
            victim = self._running.worst(self._waiting.rank)
            if victim is sequence or self._num_in_flight:
                return False
            self._preempt(victim, draft, refund=victim.state is State.DECODING)

    # Admission

    def _admit(self, draft: Draft, now: float, fastest_step_s: float) -> None:
        """Let the first of the waiting in, as long as sequences, budget and blocks last."""
        promised = sum(self._blocks_to_come(sequence) for sequence in self._running.prefilling)
        while draft.budget > 0:
            sequence = self._waiting.peek()
            if sequence is None:
                return
            if self._running.num_slots + sequence.num_slots > self.config.max_num_seqs:
                if not self._make_room(sequence, draft):
                    return
                continue
            match = self._match(sequence)
            deadline = None if sequence.group.was_admitted else sequence.request.deadline
            if deadline is not None and now + self._fewest_steps(sequence, match) * fastest_step_s > deadline:
                self._expire(sequence)
                continue
            length = self._chunk(sequence, match.num_tokens, draft.budget_of(sequence))
            if not length or self._is_coming(sequence, match):
                return
            # The whole prompt must fit beside what the prompts under way still need, or they would preempt each other.
            # Alone it needs no such room: the pool holds one sequence of any length, in windows if not at once.
            fits = not len(self._running) or self._cache.fits(match, len(sequence.tokens), spare=promised)
            if not (fits and self._cache.admit(sequence.blocks, match, match.num_tokens + length)):
                if not self._make_room(sequence, draft):
                    return
                continue
            self._waiting_to_running(sequence, match.num_tokens)
            draft.grant(sequence, length)
            promised += self._blocks_to_come(sequence)

    def _looks_up(self, sequence: Sequence) -> bool:
        """Whether a cached beginning may be used."""
        return self._cache.enable_prefix_caching and not sequence.group.needs_whole_prompt

    def _match(self, sequence: Sequence) -> PrefixMatch:
        """What of it need not be computed."""
        if self._looks_up(sequence):
            return self._cache.match(sequence.blocks, sequence.tokens)
        return PrefixMatch(num_tokens=0, tables=tuple([] for _ in self._cache.groups))

    def _is_coming(self, sequence: Sequence, match: PrefixMatch) -> bool:
        """Whether a prompt under way is about to compute the very block that this one would begin with: it waits for it
        to land, and then finds it. Somebody gets tokens in this plan, so the wait is a step at a time and ends. (A
        prompt whose last chunk is in flight is not seen: that takes a plan made ahead.)"""
        cache, place = self._cache, match.num_tokens // self._cache.block_size
        end = (place + 1) * cache.block_size
        if not self._looks_up(sequence) or end >= len(sequence.tokens):
            return False
        chain = sequence.blocks.chain
        chain.extend(sequence.tokens, place + 1)
        for other in self._running.prefilling:
            if other.num_computed < end <= len(other.tokens):
                other.blocks.chain.extend(other.tokens, place + 1)
                if other.blocks.chain.hashes[place] == chain.hashes[place]:
                    return True
        return False

    def _waiting_to_running(self, sequence: Sequence, num_cached_tokens: int) -> None:
        self._running.enter(sequence, State.PREFILLING)
        self._waiting.remove(sequence)
        sequence.num_computed = num_cached_tokens
        if sequence.group.was_admitted:
            return
        sequence.group.was_admitted = True
        if self._looks_up(sequence):
            self._stats.prefix_queries += len(sequence.tokens)
        self._stats.prefix_hits += num_cached_tokens
        self._stats.prompt_tokens += len(sequence.tokens)
        self._outbox.admitted.append(Admitted(request=sequence.request.id, num_cached_tokens=num_cached_tokens))

    def _make_room(self, waiting: Sequence, draft: Draft) -> bool:
        """Push the worst running sequence out for one that waits: where the policy says so, or where nothing else moves
        (a pause that waits for a sibling behind this one would last for ever). False: let it wait."""
        if not len(self._running):
            return False
        victim = self._running.worst(self._waiting.rank)
        stuck = not draft.num_tokens and self._waiting.rank(waiting) < self._waiting.rank(victim)
        if not (stuck or self._waiting.outranks(waiting, victim)):
            return False
        if self._num_in_flight:
            self._gives_way = True
            return False
        self._preempt(victim, draft, refund=victim.state is State.DECODING, reason=PreemptReason.PRIORITY)
        return True

    def _fewest_steps(self, sequence: Sequence, match: PrefixMatch) -> int:
        """Steps that it needs, not having begun, if it gets the whole budget and ends as soon as it may."""
        params = sequence.request.params
        may_end = not params.ignore_eos or params.stop_token_ids or params.stop
        fewest_tokens = max(1, params.min_tokens) if may_end else params.max_tokens or 1
        chunk = self._chunk(sequence, match.num_tokens, self.config.max_num_batched_tokens)
        prompt_steps = -(-(len(sequence.tokens) - match.num_tokens) // chunk)
        return prompt_steps + fewest_tokens - 1

    # The end of a plan

    def _seal(self, draft: Draft, step: int) -> tuple[StepPlan, list[Sequence]]:
        running = self._running
        plan = draft.seal(step=step, running=running, copies=self._cache.take_copies())
        running.joining.clear()
        running.left.clear()
        landing = [(sequence, length) for sequence, length in draft.chunks if length]
        if self._waiting.charges:
            for sequence, length in (*landing, *((decoding, 1) for decoding in running.decoding)):
                self._waiting.charge(sequence, length)
        prompts = ((sequence, length) for sequence, length in landing if not sequence.jumps)
        self._outbox.chunks.extend((sequence.request.id, length) for sequence, length in prompts)
        for sequence, length in landing:
            sequence.num_computed += length
            if sequence.num_computed == len(sequence.tokens):
                running.move(sequence, State.PAUSED if _waits(sequence) else State.DECODING)
                sequence.jumps = False
                self._set_limit(sequence, sequence.num_computed)
        self._stats.num_steps += 1
        self._stats.num_scheduled_tokens += plan.num_tokens
        return plan, [sequence for sequence, _ in landing]

    def _preempt(
        self,
        sequence: Sequence,
        draft: Draft,
        *,
        refund: bool = False,
        reason: PreemptReason = PreemptReason.BLOCKS,
    ) -> None:
        """Give all its blocks back and let it wait where it was; what it computed counts no more."""
        draft.withdraw(sequence)
        if refund:  # it was counted among the decodes of this plan
            draft.budget += 1
            draft.num_tokens -= 1
        self._stats.num_preemptions += 1
        self.put_back(sequence, reason)

    def put_back(self, sequence: Sequence, reason: PreemptReason = PreemptReason.DEVICE) -> None:
        """From running to waiting, with nothing computed and no blocks."""
        self._outbox.preempted.append(Preempted(request=sequence.request.id, reason=reason))
        if sequence.group.beams is not None:
            sequence.group.beams.forget(sequence)
        self._running.leave(sequence, State.WAITING)
        self._cache.release(sequence.blocks)
        sequence.num_computed = 0
        sequence.jumps = False
        self._waiting.push(sequence)

    # Small arithmetic

    def _chunk(self, sequence: Sequence, num_computed: int, budget: int) -> int:
        """How many of its known tokens the budget and the threshold allow in this step."""
        length = min(len(sequence.tokens) - num_computed, budget)
        threshold = self.config.long_prefill_token_threshold
        return min(length, threshold) if threshold else length

    def _coverable(self, sequence: Sequence) -> int:
        """The longest chunk that the free blocks could hold, at least."""
        block_size = self._cache.block_size
        free = self._cache.num_free_blocks // len(self._cache.groups)
        return -(-sequence.num_computed // block_size) * block_size - sequence.num_computed + free * block_size

    def _blocks_to_come(self, sequence: Sequence) -> int:
        """Blocks that a prompt under way will still ask for."""
        block_size = self._cache.block_size
        missing = -(-len(sequence.tokens) // block_size) - len(sequence.blocks.tables[0])
        return missing * len(self._cache.groups)

    def _set_limit(self, sequence: Sequence, num_tokens: int) -> None:
        block_size = self._cache.block_size
        sequence.limit = min(-(-num_tokens // block_size) * block_size, sequence.group.most_tokens - 1)


def _waits(sequence: Sequence) -> bool:
    """Whether it must rest when all its tokens are computed: what comes next is more, or less, than one token."""
    return sequence.num_slots > 1 or sequence.group.beams is not None or sequence.request.pooling is not None
