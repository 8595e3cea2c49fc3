"""A step's plan in the making: columns that grow while the planner decides, sealed into a `StepPlan` at the end.

A sequence that is preempted while the plan is made takes its entries with it.
"""

import attrs

from ...kvcache.ids import BlockId
from ...kvcache.manager import TableWrite
from .plan import JoinedSequence, StepPlan
from .request import Sequence, State
from .running import RunningSet

PROMPT_LOGPROBS_PER_STEP = 512
"""Tokens of prompts whose log-probabilities are asked for, in one step: each needs a row of logits, a hundred thousand
floats with a large vocabulary."""


@attrs.define(eq=False)
class Draft:
    """What has been decided so far."""

    budget: int
    """Tokens that can still be given out."""
    num_tokens: int = 0
    """Tokens that have been given out."""
    prompt_logprobs_budget: int = PROMPT_LOGPROBS_PER_STEP
    writes: list[tuple[Sequence, list[TableWrite]]] = attrs.field(factory=list)
    chunks: list[tuple[Sequence, int]] = attrs.field(factory=list)
    """Chunks of prompts, those of length 1 too, and who rests, with length 0."""
    short_of_blocks: bool = False
    """Somebody rests or was preempted for want of blocks: nobody new is admitted."""

    def grant(self, sequence: Sequence, num_tokens: int) -> None:
        """Give `num_tokens` of the budget to a sequence whose blocks are there."""
        self.budget -= num_tokens
        self.num_tokens += num_tokens
        self.chunks.append((sequence, num_tokens))
        if sequence.group.wants_prompt_logprobs:
            self.prompt_logprobs_budget -= num_tokens

    def budget_of(self, sequence: Sequence) -> int:
        """How many tokens this sequence could be given."""
        if sequence.group.wants_prompt_logprobs:
            return min(self.budget, self.prompt_logprobs_budget)
        return self.budget

    def withdraw(self, sequence: Sequence) -> None:
        """Take back what this plan gave to a sequence that is being preempted."""
        self.writes = [entry for entry in self.writes if entry[0] is not sequence]
        for index, (other, num_tokens) in enumerate(self.chunks):
            if other is sequence:
                del self.chunks[index]
                self.budget += num_tokens
                self.num_tokens -= num_tokens
                if sequence.group.wants_prompt_logprobs:
                    self.prompt_logprobs_budget += num_tokens
                break

    def seal(self, *, step: int, running: RunningSet, copies: list[tuple[BlockId, BlockId]]) -> StepPlan:
        """The finished plan, before `num_computed` takes the chunks in. Who joins brings whole tables, so the writes of
        those are not listed."""
        joining = set(map(id, running.joining))
        writes = [(s.device_id, *write) for s, each in self.writes if id(s) not in joining for write in each]
        chunks = [(s.device_id, length) for s, length in self.chunks if length != 1]
        columns = tuple(zip(*writes, strict=True)) if writes else ((), (), (), ())
        sequences, lengths = tuple(zip(*chunks, strict=True)) if chunks else ((), ())
        sources, targets = tuple(zip(*copies, strict=True)) if copies else ((), ())
        return StepPlan(
            step=step,
            num_tokens=self.num_tokens,
            num_sequences=len(running),
            left=tuple(running.left),
            joined=tuple(map(_joined, running.joining)),
            write_sequences=columns[0],
            write_groups=columns[1],
            write_indexes=columns[2],
            write_blocks=columns[3],
            copy_sources=sources,
            copy_targets=targets,
            chunk_sequences=sequences,
            chunk_lengths=lengths,
        )


def _joined(sequence: Sequence) -> JoinedSequence:
    request = sequence.request
    beams = sequence.group.beams
    decoding = sequence.state is State.DECODING  # then num_computed counts this step's token already
    return JoinedSequence(
        sequence=sequence.device_id,
        token_ids=tuple(sequence.tokens),
        num_prompt_tokens=len(request.prompt_token_ids),
        num_computed=sequence.num_computed - decoding,
        block_tables=tuple(tuple(table) for table in sequence.blocks.tables),
        sampling=request.params,
        seed=request.seed,
        end_token_ids=tuple(sorted(sequence.group.end_tokens)),
        choice=sequence.choice,
        num_samples=sequence.num_slots if beams is None else 1,
        num_candidates=0 if beams is None else beams.num_candidates,
        pooling=request.pooling,
        prompt_logprobs_from=sequence.group.next_prompt_logprob if sequence.group.wants_prompt_logprobs else None,
    )
