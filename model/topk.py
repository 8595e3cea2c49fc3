"""The largest values of each row, in much less time than `Tensor.topk` on a CPU takes for a whole vocabulary.

Imports torch, and asks for native kernels. Rows are looked at in blocks: the `k` blocks with the largest maxima hold
the `k` largest values, so only those are sorted.
"""

import torch
from torch import Tensor

from .row_kernels import kernels_for

_BLOCK = 32
"""Values of a block: those whose places are equal modulo the number of blocks, so that maxima are taken in lanes."""


def largest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The `k` largest of each row `[n, width]`, falling, and where they stand; equal ones in order of their places.

    Of several that equal the last of the `k`, any may have been left out. `k` is at most the width. No row may hold a
    NaN.
    """
    kernels = kernels_for(values)
    if kernels is not None:
        return kernels.largest(values, k)
    num_rows, width = values.shape
    num_blocks = width // _BLOCK
    whole = num_blocks * _BLOCK
    if values.device.type != "cpu" or num_blocks < 4 * k:
        return _in_order(*values.topk(k, -1))
    blocks = values[:, :whole].view(num_rows, _BLOCK, num_blocks)
    best = blocks.amax(1).topk(k, -1, sorted=False).indices
    some = blocks.gather(2, best[:, None, :].expand(-1, _BLOCK, -1)).flatten(1)
    if width > whole:
        some = torch.cat((some, values[:, whole:]), 1)
    found, at = some.topk(k, -1)
    # Within the blocks, place `at` is lane `at // k` of the block `best[at % k]`.
    ids = at // k * num_blocks + best.gather(1, at % k)
    if width > whole:
        ids = torch.where(at < _BLOCK * k, ids, at - _BLOCK * k + whole)
    return _in_order(found, ids)


def _in_order(values: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    ids, by_id = ids.sort(-1)
    values, by_value = values.gather(1, by_id).sort(stable=True, dim=-1, descending=True)
    return values, ids.gather(1, by_value)
