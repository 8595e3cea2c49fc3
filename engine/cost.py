"""What a step computes, read off its plan: the shape that its time depends on.

Pure. `MirroredBatch` follows the plans as a device does, without computing anything: for simulations, measurements and
whoever looks into a running engine.
"""

from collections.abc import Callable, Iterable

import attrs

from .core.ids import SequenceId
from .core.plan import JoinedSequence, StepPlan


@attrs.frozen
class StepPart:
    """What one sequence computes in a step: its tokens `[start, end)`."""

    sequence: SequenceId
    start: int
    end: int
    samples: bool
    """The step gives its next token."""

    @property
    def num_tokens(self) -> int:
        return self.end - self.start


@attrs.frozen(kw_only=True)
class StepShape:
    """How much of each kind of work a step has."""

    num_tokens: int
    """Tokens computed: rows of the matrix products."""
    num_sampled: int
    """Tokens given: rows of the output head."""
    num_context: int
    """Tokens whose KV is read, each counted once for each sequence that reads it."""
    num_pairs: int
    """Pairs of a computed token and a token that it attends to."""


StepCost = Callable[[StepShape], float]
"""Seconds of a step."""


def shape_of(parts: Iterable[StepPart]) -> StepShape:
    """The sum over the sequences of a step."""
    tokens = sampled = context = pairs = 0
    for part in parts:
        tokens += part.num_tokens
        sampled += part.samples
        context += part.end
        pairs += part.num_tokens * (part.start + part.end + 1) // 2
    return StepShape(num_tokens=tokens, num_sampled=sampled, num_context=context, num_pairs=pairs)


class MirroredBatch:
    """The batch that a device keeps, as numbers. Plans are to come in their order."""

    def __init__(self) -> None:
        self._states: dict[SequenceId, list[int]] = {}  # computed and known tokens

    def apply(self, plan: StepPlan) -> list[StepPart]:
        """What the step computes, by sequence; those that rest are left out."""
        for sequence in plan.left:
            del self._states[sequence]
        for joined in plan.joined:
            self._states[joined.sequence] = self._state(joined)
        lengths = dict(zip(plan.chunk_sequences, plan.chunk_lengths, strict=True))
        parts = []
        for sequence, state in self._states.items():
            length = lengths.get(sequence, 1)
            if length:
                start, end = state[0], state[0] + length
                state[0] = end
                samples = end == state[1]
                state[1] += samples
                parts.append(StepPart(sequence, start, end, samples))
        return parts

    def forget(self) -> None:
        """The device has lost its batch."""
        self._states.clear()

    @staticmethod
    def _state(joined: JoinedSequence) -> list[int]:
        return [joined.num_computed, len(joined.token_ids)]
