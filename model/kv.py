"""The KV cache's tensors, allocated once at start and never resized.

One tensor for each layer, laid out `[num_blocks, block_size, 2, num_kv_heads, head_dim]`: what a token has in a layer
lies together, keys before values, so a token is written as one row and a context is gathered as rows. Position p of a
sequence is in slot `p % block_size` of block `table[p // block_size]`, which is row `block * block_size + slot` of
`rows(layer)`.

A group is a set of layers with the same block table. With one group every layer has a tensor of its own. With several,
the i-th layers of all groups share the i-th tensor: block numbers come from one pool, so a block belongs to one group
at a time and the layers never meet in a slot.

The memory is not cleared: a slot that was not written holds anything, also NaN, and nobody may read it, not even with
weight zero.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..kvcache.arithmetic import block_bytes
from .spec import ModelSpec

FP8 = (torch.float8_e4m3fn,)
"""Types too coarse to hold a number without a scale."""


class KVTensors:
    """Owns the tensors of all layers. Used by the device thread alone."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        layer_groups: Sequence[int] | None = None,
        num_spare_blocks: int = 0,
    ) -> None:
        """`layer_groups` names the group of each layer; None puts all layers into group 0. Spare blocks stand behind
        the others, in no table: a step on the device writes there what is nobody's."""
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a KV cache needs blocks and slots, not {num_blocks} blocks of {block_size}")
        self.num_blocks = num_blocks
        self.num_spare_blocks = num_spare_blocks
        self.block_size = block_size
        self.num_kv_heads = spec.num_kv_heads
        self.head_dim = spec.head_dim
        self.layer_groups = tuple(layer_groups) if layer_groups is not None else (0,) * spec.num_layers
        self.num_groups = max(self.layer_groups) + 1
        if len(self.layer_groups) != spec.num_layers or set(self.layer_groups) != set(range(self.num_groups)):
            raise ValueError(f"layer_groups {self.layer_groups} do not number the groups of {spec.num_layers} layers")
        num_all = num_blocks + num_spare_blocks
        shape = (num_all, block_size, 2, spec.num_kv_heads, spec.head_dim)
        num_tensors = max(self.layer_groups.count(group) for group in range(self.num_groups))
        self.tensors = tuple(torch.empty(shape, dtype=dtype, device=device) for _ in range(num_tensors))
        """What is allocated: as many as the largest group has layers."""
        rank = [self.layer_groups[:layer].count(group) for layer, group in enumerate(self.layer_groups)]
        self.layers = tuple(self.tensors[index] for index in rank)
        """The tensor of each layer."""
        self.scales = tuple(
            torch.ones((2, spec.num_kv_heads), dtype=torch.float32, device=device) if dtype in FP8 else None
            for _ in self.layers
        )
        """For each layer of an fp8 cache, `[keys or values, head]`: what is stored times its scale is what is meant."""
        self._rows = tuple(tensor.view(num_all * block_size, -1) for tensor in self.layers)

    @property
    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    def rows(self, layer: int) -> Tensor:
        """The layer's tensor as `[num_blocks * block_size, 2 * num_kv_heads * head_dim]`, a view, spare blocks last."""
        return self._rows[layer]

    def store(self, layer: int, slots: Tensor, pairs: Tensor) -> None:
        """Put keys and values `[n, 2, num_kv_heads, head_dim]` into these rows, in the cache's type."""
        rows, scales = self._rows[layer], self.scales[layer]
        if scales is not None:
            largest = torch.finfo(rows.dtype).max
            pairs = (pairs.float() / scales[:, :, None]).clamp(-largest, largest).to(rows.dtype)
        as_movable(rows).index_copy_(0, slots, as_movable(pairs).reshape(len(slots), -1))

    def load(self, layer: int, slots: Tensor) -> Tensor:
        """What these rows hold, `[n, 2, num_kv_heads, head_dim]`; of an fp8 cache what it means, as float32."""
        rows, scales = self._rows[layer], self.scales[layer]
        shape = (-1, 2, self.num_kv_heads, self.head_dim)
        if scales is None:
            return rows.index_select(0, slots).view(shape)
        held = as_movable(rows).index_select(0, slots).view(rows.dtype)
        return held.view(shape).float() * scales[:, :, None]

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks in all layers; every source is read before any target is written."""
        if len(sources) != len(targets):
            raise AssertionError(f"{len(sources)} blocks to copy, but {len(targets)} targets")
        if not sources:
            return
        for block in (*sources, *targets):
            if not 0 <= block < self.num_blocks:
                raise AssertionError(f"block {block} is to be copied, but there are {self.num_blocks} blocks")
        read = torch.tensor(sources, device=self.tensors[0].device)
        write = torch.tensor(targets, device=self.tensors[0].device)
        for tensor in self.tensors:
            movable = as_movable(tensor)
            movable.index_copy_(0, write, movable.index_select(0, read))


def as_movable(tensor: Tensor) -> Tensor:
    """The tensor itself, or fp8 as bytes: not every device selects and copies fp8 by index."""
    return tensor.view(torch.uint8) if tensor.dtype in FP8 else tensor


def bytes_per_block(spec: ModelSpec, *, block_size: int, dtype: torch.dtype, num_layers: int | None = None) -> int:
    """What one block takes over all layers (`num_layers`: the layers of the largest group, by default all)."""
    return block_bytes(
        num_layers=spec.num_layers if num_layers is None else num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        element_bytes=dtype.itemsize,
        block_size=block_size,
    )
