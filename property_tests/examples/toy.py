"""A toy allocator with one planted fault, and its adapter: the worked example of docs/allocator-spec.md.

    pytest property_tests --allocator property_tests.examples.toy:ToyAdapter

fails, and prints the shortest program that shows the fault.
"""

from collections.abc import Sequence
from typing import ClassVar


class ToyAllocator:
    """Blocks from a list, a table for each sequence, and nothing else."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.free = list(range(num_blocks))

    def grow(self, table: list[int], num_tokens: int) -> bool:
        while len(table) * self.block_size < num_tokens:
            if not self.free:
                return False  # the fault: what was taken so far stays taken
            table.append(self.free.pop())
        return True

    def give_back(self, table: list[int]) -> None:
        self.free += table
        table.clear()


class ToyAdapter:
    """ToyAllocator as the suite sees it. It has tables and nothing that makes them interesting."""

    unsupported: ClassVar[frozenset[str]] = frozenset(
        {"prefix", "fork", "truncate", "limbo", "window", "pin", "events", "reset"}
    )

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        windows: tuple[int | None, ...],
        prefix_caching: bool,
        max_pinned_blocks: int,
    ) -> None:
        self.allocator = ToyAllocator(num_blocks, block_size)

    def open(self, salt: str) -> list[int]:
        return []

    def admit(self, handle: list[int], tokens: Sequence[int], num_tokens: int) -> bool:
        return self.allocator.grow(handle, num_tokens)

    def reserve(self, handle: list[int], num_tokens: int) -> bool:
        return self.allocator.grow(handle, num_tokens)

    def release(self, handle: list[int]) -> None:
        self.allocator.give_back(handle)

    def tables(self, handle: list[int]) -> list[list[int]]:
        return [handle.copy()]

    def num_available(self) -> int:
        return len(self.allocator.free)

    def check(self) -> None:
        pass
