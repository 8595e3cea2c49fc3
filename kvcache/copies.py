"""Copies of blocks that the device owes: recorded by copy-on-write, carried out at the start of the next step."""

from collections.abc import Iterable

from .ids import BlockId


class PendingCopies:
    """(source, target) pairs, free of conflict when every source is read before any target is written."""

    __slots__ = ("_source_of",)

    def __init__(self) -> None:
        self._source_of: dict[BlockId, BlockId] = {}

    def __len__(self) -> int:
        return len(self._source_of)

    def add(self, source: BlockId, target: BlockId) -> None:
        # A source that is itself still to be filled holds nothing yet: copy from where it will be filled.
        self._source_of[target] = self._source_of.get(source, source)

    def drop(self, targets: Iterable[BlockId]) -> None:
        """Nobody holds these targets any more: filling them is useless, and wrong once they have a new owner."""
        if self._source_of:
            for target in targets:
                self._source_of.pop(target, None)

    def take(self) -> list[tuple[BlockId, BlockId]]:
        if not self._source_of:
            return []
        pairs = [(source, target) for target, source in self._source_of.items()]
        self._source_of.clear()
        return pairs

    def targets(self) -> Iterable[BlockId]:
        return self._source_of.keys()
