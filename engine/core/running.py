"""The running set: who holds blocks, what each is doing, and what the device has not been told yet.

The device's batch is `decoding`, `prefilling` and `paused` together, less those in `joining`, who enter with the next
plan. Imports the core alone; decides nothing.
"""

from collections.abc import Callable, Iterator

from .ids import SequenceId
from .policy import Rank
from .request import Sequence, State


class RunningSet:
    """Sequences by what they do in the next step. Every change of a sequence to or from running goes through it."""

    def __init__(self) -> None:
        self.decoding: list[Sequence] = []
        """They compute one token a step."""
        self.prefilling: list[Sequence] = []
        """They have more known tokens than computed ones, and get chunks."""
        self.paused: list[Sequence] = []
        """They wait for a result, or for the other beams, before their next token is known: they rest in the batch."""
        self.joining: list[Sequence] = []
        """In one of the lists above, and not in the device's batch yet."""
        self.by_id: dict[SequenceId, Sequence] = {}
        """Everyone whose tokens a result may bring, those that are closing included."""
        self.left: list[SequenceId] = []
        """Out, and the device does not know it yet."""
        self._last_id = 0

    def __len__(self) -> int:
        return len(self.decoding) + len(self.prefilling) + len(self.paused)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.decoding
        yield from self.prefilling
        yield from self.paused

    @property
    def num_slots(self) -> int:
        """Sequences that these are, or become when the first token of each is there (S1)."""
        own = sum(sequence.num_slots for sequence in self.prefilling)
        return len(self.decoding) + own + sum(sequence.num_slots for sequence in self.paused)

    def enter(self, sequence: Sequence, state: State) -> None:
        """Join the batch with the next plan, under a new id."""
        self._last_id += 1
        sequence.id = SequenceId(self._last_id)
        self.by_id[sequence.id] = sequence
        self.joining.append(sequence)
        sequence.state = state
        self._list(state).append(sequence)

    def move(self, sequence: Sequence, state: State) -> None:
        """Do something else from the next step on."""
        self._list(sequence.state).remove(sequence)
        sequence.state = state
        self._list(state).append(sequence)

    def close(self, sequence: Sequence) -> None:
        """Its last token is in flight: out of the batch, but a result for it is still to come."""
        self.decoding.remove(sequence)
        sequence.state = State.CLOSING
        self.left.append(sequence.device_id)

    def leave(self, sequence: Sequence, state: State) -> None:
        """Out for good or until it enters again; what steps in flight bring for it is no one's."""
        del self.by_id[sequence.device_id]
        if sequence.state is not State.CLOSING:
            self._list(sequence.state).remove(sequence)
            if sequence in self.joining:
                self.joining.remove(sequence)
            else:
                self.left.append(sequence.device_id)
        sequence.id = None
        sequence.state = state

    def worst(self, rank: Callable[[Sequence], Rank]) -> Sequence:
        """Whom to preempt first. Somebody must be running."""
        return max(self, key=rank)

    def _list(self, state: State) -> list[Sequence]:
        match state:
            case State.DECODING:
                return self.decoding
            case State.PREFILLING:
                return self.prefilling
            case State.PAUSED:
                return self.paused
            case _:
                raise AssertionError(f"nobody runs who is {state.value}")
