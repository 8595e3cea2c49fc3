"""The `triton` attention backend: the interface's three calls on top of the kernels beside it.

`prepare` brings a step's tables to the device. A caller that keeps them there makes a `TritonMetadata` of its own
instead, and one that has q, k and v in one tensor calls `rotate_and_write` in place of `write`.
"""

from collections.abc import Mapping
from importlib.util import find_spec

import attrs
import numpy as np
import torch
from torch import Tensor

from ....engine.core.errors import ConfigurationError
from ...kv import KVTensors
from ...launch import interpreting
from ..interface import AttentionBackend, AttentionShape, Int32Array, Int64Array, StepLayout
from .step import AttentionTerms, PagedBatch

HEAD_DIM_MAX = 256


@attrs.frozen(kw_only=True, eq=False)
class TritonMetadata:
    """A step, on the device: for each KV group its tables, and the slots that its tokens are written to."""

    batches: tuple[PagedBatch, ...]
    write_slots: tuple[Tensor, ...]


class TritonAttention(AttentionBackend):
    """See the module's docstring. Attention terms that a model has besides the shape are given once, before the first
    step, through `terms`."""

    name = "triton"

    def __init__(self, shape: AttentionShape, kv: KVTensors) -> None:
        super().__init__(shape, kv)
        if shape.head_dim > HEAD_DIM_MAX:
            raise ConfigurationError(
                f"--attention-backend triton takes heads of up to {HEAD_DIM_MAX} dimensions; this model's have "
                f"{shape.head_dim}: choose --attention-backend torch."
            )
        from .paged import paged_attention  # here, so that a machine without triton can ask whether it is usable

        self._attention = paged_attention
        self._device = kv.tensors[0].device
        self.terms: tuple[AttentionTerms, ...] = tuple(
            AttentionTerms(scale=shape.head_dim**-0.5, window=window) for window in shape.windows
        )
        """What each layer asks for. Replaced, never changed."""

    @classmethod
    def unusable(cls, device_type: str) -> str | None:
        if find_spec("triton") is None:
            return "triton is not installed"
        if device_type != "cuda" and not interpreting():
            return f"its kernels run on an NVIDIA GPU, not on {device_type}"
        return None

    def set_scales(self, scales: Mapping[int, tuple[Tensor, Tensor]]) -> None:
        """What the keys and values of an fp8 cache are divided by, for these layers: float32 `[num_kv_heads]` each."""
        self.terms = tuple(
            attrs.evolve(terms, key_scale=scales[layer][0], value_scale=scales[layer][1]) if layer in scales else terms
            for layer, terms in enumerate(self.terms)
        )

    def prepare(self, layout: StepLayout) -> TritonMetadata:
        starts = np.zeros(len(layout.query_lengths) + 1, np.int32)
        np.cumsum(layout.query_lengths, out=starts[1:])
        query_starts, contexts = self._to_device(starts), self._to_device(layout.context_lengths.astype(np.int32))
        longest = int(layout.query_lengths.max(initial=1)), int(layout.context_lengths.max(initial=1))
        return TritonMetadata(
            batches=tuple(
                PagedBatch(
                    query_starts=query_starts,
                    context_lengths=contexts,
                    tables=self._to_device(table),
                    max_query_length=longest[0],
                    max_context_length=longest[1],
                )
                for table in layout.tables
            ),
            write_slots=tuple(self._to_device(slots) for slots in layout.write_slots),
        )

    def write(self, layer: int, keys: Tensor, values: Tensor, metadata: TritonMetadata) -> None:
        rows, terms = self.kv.rows(layer), self.terms[layer]
        if rows.dtype is torch.float8_e4m3fn:
            keys = keys if terms.key_scale is None else keys / terms.key_scale[:, None]
            values = values if terms.value_scale is None else values / terms.value_scale[:, None]
        new = torch.stack((keys, values), 1).view(keys.shape[0], -1)
        if rows.dtype is torch.float8_e4m3fn:
            limit = torch.finfo(rows.dtype).max
            new, rows = new.clamp(-limit, limit).to(rows.dtype).view(torch.uint8), rows.view(torch.uint8)
        rows.index_copy_(0, metadata.write_slots[self.kv.layer_groups[layer]], new)

    def attend(self, layer: int, queries: Tensor, metadata: TritonMetadata) -> Tensor:
        batch = metadata.batches[self.kv.layer_groups[layer]]
        return self._attention(queries, self.kv.layers[layer], batch, self.terms[layer])

    def _to_device(self, array: Int32Array | Int64Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device, non_blocking=True)
