"""Copies of KV blocks, all layers in one kernel, as copy-on-write asks for them.

Every source is read before any target is written. Where no block is both, one kernel copies from block to block; where
one is, the order of programs would decide what is read, so the blocks go through a scratch tensor: all are read, and
then, in a second kernel, all are written.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...launch import Launch, runs_kernels

WORDS = 2048
"""32-bit words of a program."""


class BlockCopier:
    """Copies blocks of these tensors, which are alike, contiguous and stay where they are."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """`tensors` are `[num_blocks, …]` with a whole number of 32-bit words in a block. The list of their addresses
        is put on their device."""
        self.tensors = tuple(tensors)
        first = self.tensors[0]
        self._bytes = first[0].numel() * first.element_size()
        if self._bytes % 4 or any(not tensor.is_contiguous() for tensor in self.tensors):
            raise AssertionError(f"blocks of {self._bytes} bytes cannot be copied as words")
        self._addresses = torch.tensor([tensor.data_ptr() for tensor in self.tensors], device=first.device)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy block `sources[i]` to `targets[i]` in every tensor; targets differ from one another."""
        if len(sources) != len(targets) or len(set(targets)) != len(targets):
            raise AssertionError(f"{len(sources)} blocks cannot be copied to {len(targets)}, each written once")
        for block in (*sources, *targets):
            if not 0 <= block < self.tensors[0].shape[0]:
                raise AssertionError(f"block {block} is to be copied, but there are {self.tensors[0].shape[0]} blocks")
        if not sources:
            return
        if not runs_kernels(self.tensors[0]):
            copy_blocks_reference(self.tensors, sources, targets)
            return
        for launch in self.launches(sources, targets):
            launch.run()

    def launches(self, sources: Sequence[int], targets: Sequence[int]) -> tuple[Launch, ...]:
        """One launch, or two in this order."""
        device, count = self.tensors[0].device, len(sources)
        read, write = torch.tensor((tuple(sources), tuple(targets)), dtype=torch.int32).to(device, non_blocking=True)
        if set(sources).isdisjoint(targets):
            return (self._launch(self._addresses, self._addresses, read, write),)
        scratch = torch.empty((len(self.tensors), count, self._bytes // 4), dtype=torch.int32, device=device)
        places = torch.arange(count, dtype=torch.int32, device=device)
        held = torch.tensor([scratch[i].data_ptr() for i in range(len(self.tensors))], device=device)
        return (
            self._launch(self._addresses, held, read, places, scratch),
            self._launch(held, self._addresses, places, write, scratch),
        )

    def _launch(self, sources: Tensor, targets: Tensor, read: Tensor, write: Tensor, *kept: Tensor) -> Launch:
        words = self._bytes // 4
        return Launch(
            kernel=_copy_blocks,
            grid=(read.shape[0], len(self.tensors), triton.cdiv(words, WORDS)),
            arguments={"sources": sources, "targets": targets, "read": read, "write": write, "words": words},
            constants={"WORDS": WORDS},
            kept=kept,
        )


def copy_blocks_reference(tensors: Sequence[Tensor], sources: Sequence[int], targets: Sequence[int]) -> None:
    """The same in torch."""
    for tensor in tensors:
        read = torch.tensor(sources, dtype=torch.int64, device=tensor.device)
        tensor[torch.tensor(targets, dtype=torch.int64, device=tensor.device)] = tensor[read]


@triton.jit
def _copy_blocks(sources, targets, read, write, words, WORDS: tl.constexpr):
    pair, tensor = tl.program_id(0), tl.program_id(1)
    source = tl.load(sources + tensor).to(tl.pointer_type(tl.int32))
    target = tl.load(targets + tensor).to(tl.pointer_type(tl.int32))
    # Torch aligns what it allocates; the compiler cannot see it through an address that is loaded.
    source, target = tl.multiple_of(source, 16), tl.multiple_of(target, 16)
    offsets = tl.program_id(2) * WORDS + tl.arange(0, WORDS)
    inside = offsets < words
    held = tl.load(source + tl.load(read + pair).to(tl.int64) * words + offsets, mask=inside)
    tl.store(target + tl.load(write + pair).to(tl.int64) * words + offsets, held, mask=inside)
