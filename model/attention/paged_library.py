"""What the backends over other libraries share: the cache is ours, so they write to it as the torch backend does."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..kv import KVTensors
from .interface import AttentionBackend, AttentionShape, StepLayout


class PagedLibrary(AttentionBackend):
    """Groups, windows and writes; `prepare` and `attend` are the library's."""

    def __init__(self, shape: AttentionShape, kv: KVTensors) -> None:
        super().__init__(shape, kv)
        self.kinds = tuple(zip(kv.layer_groups, shape.windows, strict=True))
        """Group and window of each layer: layers alike share what `prepare` makes."""
        self.device = kv.tensors[0].device

    def write_slots(self, layout: StepLayout) -> tuple[Tensor, ...]:
        """For each group, where this step's keys and values go."""
        return tuple(self.to_device(slots) for slots in layout.write_slots)

    def store(self, layer: int, keys: Tensor, values: Tensor, slots: tuple[Tensor, ...]) -> None:
        """Put them there."""
        self.kv.store(layer, slots[self.kinds[layer][0]], torch.stack((keys, values), 1))

    def halves(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer `[num_blocks, block_size, num_kv_heads, head_dim]`, views of one tensor."""
        keys, values = self.kv.layers[layer].unbind(2)
        return keys, values

    def to_device(self, array: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, non_blocking=True)
