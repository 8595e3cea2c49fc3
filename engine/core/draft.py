"""A step's plan in the making: columns that grow while the scheduler decides, sealed into a `StepPlan` at the end.

A sequence that is preempted while the plan is made takes its entries with it.
"""

import attrs

from ...kvcache.ids import BlockId
from .ids import SequenceId
from .plan import JoinedSequence, StepPlan
from .request import Sequence, State

TableWrite = tuple[int, int, BlockId]


@attrs.define(eq=False)
class Draft:
    """What has been decided so far."""

    budget: int
    """Tokens that can still be given out."""
    num_tokens: int = 0
    left: list[SequenceId] = attrs.field(factory=list)
    joined: list[Sequence] = attrs.field(factory=list)
    writes: list[tuple[Sequence, list[TableWrite]]] = attrs.field(factory=list)
    chunks: list[tuple[Sequence, int]] = attrs.field(factory=list)
    """Chunks of prompts, those of length 1 too: the sequence and how many tokens it computes."""
    short_of_blocks: bool = False
    """Somebody rests or was preempted for want of blocks: nobody new is admitted."""

    def grant(self, sequence: Sequence, num_tokens: int) -> None:
        """Give `num_tokens` of the budget to a sequence whose blocks are there."""
        self.budget -= num_tokens
        self.num_tokens += num_tokens
        self.chunks.append((sequence, num_tokens))

    def withdraw(self, sequence: Sequence) -> None:
        """Take back what this plan gave to a sequence that is being preempted."""
        assert sequence.id is not None
        self.left.append(sequence.id)
        self.writes = [entry for entry in self.writes if entry[0] is not sequence]
        for index, (other, num_tokens) in enumerate(self.chunks):
            if other is sequence:
                del self.chunks[index]
                self.budget += num_tokens
                self.num_tokens -= num_tokens
                break

    def seal(self, *, step: int, num_sequences: int, copies: list[tuple[BlockId, BlockId]]) -> StepPlan:
        """The finished plan. Joined sequences bring their whole tables, so their writes are not listed."""
        joined = set(map(id, self.joined))
        writes = [(s.id, *write) for s, each in self.writes if id(s) not in joined for write in each]
        chunks = [(s.id, length) for s, length in self.chunks if length != 1]
        columns = tuple(zip(*writes, strict=True)) if writes else ((), (), (), ())
        sequences, lengths = tuple(zip(*chunks, strict=True)) if chunks else ((), ())
        sources, targets = tuple(zip(*copies, strict=True)) if copies else ((), ())
        return StepPlan(
            step=step,
            num_tokens=self.num_tokens,
            num_sequences=num_sequences,
            left=tuple(self.left),
            joined=tuple(_joined(sequence) for sequence in self.joined),
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
    """Called before the plan's chunks are added to `num_computed`: the device adds them itself."""
    assert sequence.id is not None
    assert sequence.state is not State.WAITING
    request = sequence.request
    return JoinedSequence(
        sequence=sequence.id,
        token_ids=tuple(sequence.tokens),
        num_prompt_tokens=len(request.prompt_token_ids),
        num_computed=sequence.num_computed,
        block_tables=tuple(tuple(table) for table in sequence.blocks.tables),
        sampling=request.params,
        seed=request.seed,
        end_token_ids=tuple(sorted(sequence.end_tokens)),
    )
