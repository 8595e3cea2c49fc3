"""The `flashinfer` backend: FlashInfer's paged attention over our cache, where the package is installed.

Prompts and decodes go through one wrapper for each kind of layer, planned once a step. https://docs.flashinfer.ai
"""

from importlib.util import find_spec
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from ..kv import KVTensors
from .interface import AttentionShape, StepLayout
from .paged_library import PagedLibrary
from .pages import pages_of

WORKSPACE_BYTES = 128 << 20
"""Scratch that its wrappers share: what its documentation recommends."""


@attrs.frozen(kw_only=True, eq=False)
class FlashInferMetadata:
    """One step; the wrappers hold the rest of it, until they are planned for the next."""

    write_slots: tuple[Tensor, ...]


class FlashInfer(PagedLibrary):
    """See the module's docstring."""

    name = "flashinfer"

    def __init__(self, shape: AttentionShape, kv: KVTensors) -> None:
        super().__init__(shape, kv)
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper

        self._wrappers: dict[tuple[int, int | None], Any] = {
            kind: BatchPrefillWithPagedKVCacheWrapper(
                torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=self.device), "NHD"
            )
            for kind in dict.fromkeys(self.kinds)
        }
        """One for each kind of layer: each holds one plan."""

    @classmethod
    def unusable(cls, device_type: str) -> str | None:
        if find_spec("flashinfer") is None:
            return "flashinfer is not installed (pip install flashinfer-python)"
        return None if device_type == "cuda" else f"it runs on an NVIDIA GPU, not on {device_type}"

    def prepare(self, layout: StepLayout) -> FlashInferMetadata:
        dtype = self.kv.tensors[0].dtype
        for (group, window), wrapper in self._wrappers.items():
            pages = pages_of(layout, group, window, self.kv.block_size)
            last = pages.lengths - (pages.counts - 1) * self.kv.block_size
            wrapper.plan(
                torch.from_numpy(pages.query_starts),
                torch.from_numpy(pages.page_starts),
                self.to_device(pages.flat),
                torch.from_numpy(last.astype(np.int32)),
                self.shape.num_heads,
                self.shape.num_kv_heads,
                self.shape.head_dim,
                self.kv.block_size,
                causal=True,
                sm_scale=self.shape.head_dim**-0.5,
                window_left=-1 if window is None else window - 1,
                q_data_type=dtype,
                kv_data_type=dtype,
            )
        return FlashInferMetadata(write_slots=self.write_slots(layout))

    def write(self, layer: int, keys: Tensor, values: Tensor, metadata: FlashInferMetadata) -> None:
        self.store(layer, keys, values, metadata.write_slots)

    def attend(self, layer: int, queries: Tensor, metadata: FlashInferMetadata) -> Tensor:
        outputs: Tensor = self._wrappers[self.kinds[layer]].run(queries.contiguous(), self.halves(layer))
        return outputs
