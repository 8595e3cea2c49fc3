"""The kernels of a device step in Triton: launchers of `attention/triton` and `layers/triton`, bound to a model.

Imported when it is chosen. Where there is no GPU the launchers compute their references, or run in the interpreter.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..attention.interface import AttentionShape
from ..attention.triton.copy_blocks import BlockCopier
from ..attention.triton.paged import paged_attention
from ..attention.triton.rotate_and_write import rotate_and_write
from ..attention.triton.step import AttentionTerms, PagedBatch
from ..kv import KVTensors
from ..layers.rotary import Rotary
from ..layers.triton.rms_norm import add_rms_norm
from ..layers.triton.sample import USABLE, SamplingColumns, sample_tokens
from ..layers.triton.silu_mul import silu_mul
from .kernels import DeviceLayout, HeadNorms
from .sampling import DeviceSampling


class TritonKernels:
    """See `kernels.Kernels`."""

    name = "triton"

    def __init__(
        self, shape: AttentionShape, kv: KVTensors, rotary: Rotary, dtype: torch.dtype, *, num_rows: int
    ) -> None:
        """`num_rows`: the most rows that are sampled in a step. `dtype` is what the model computes in."""
        self._shape, self._kv, self._rotary, self._dtype = shape, kv, rotary, dtype
        self._copier = BlockCopier(kv.tensors)
        self._terms = tuple(
            AttentionTerms(
                scale=shape.head_dim**-0.5,
                window=window,
                key_scale=None if scales is None else scales[0],
                value_scale=None if scales is None else scales[1],
            )
            for window, scales in zip(shape.windows, kv.scales, strict=True)
        )
        device = kv.tensors[0].device
        # No row of a plain step has a penalty: what asks for one is sampled on the host.
        self._slots = torch.arange(num_rows, device=device)
        self._ones = torch.ones(num_rows, device=device)
        self._zeros = torch.zeros(num_rows, device=device)

    def add_norm(self, hidden: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        normed = add_rms_norm(hidden, residual, weight, eps)
        return normed, hidden if residual is None else residual

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return silu_mul(gate_up)

    def turns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self._rotary.tables(positions, self._dtype)

    def rotate_and_write(
        self, layer: int, qkv: Tensor, norms: HeadNorms | None, turns: object, slots: tuple[Tensor, ...]
    ) -> Tensor:
        terms = self._terms[layer]
        return rotate_and_write(
            qkv,
            turns,  # type: ignore[arg-type]
            self._kv.layers[layer],
            slots[self._kv.layer_groups[layer]],
            num_heads=self._shape.num_heads,
            q_norm=None if norms is None else norms.queries,
            k_norm=None if norms is None else norms.keys,
            eps=0.0 if norms is None else norms.eps,
            key_scale=terms.key_scale,
            value_scale=terms.value_scale,
        )

    def attend(self, layer: int, queries: Tensor, layout: DeviceLayout) -> Tensor:
        batch = PagedBatch(
            query_starts=layout.query_starts,
            context_lengths=layout.context_lengths,
            tables=layout.tables[self._kv.layer_groups[layer]],
            max_query_length=layout.most_queries,
            max_context_length=layout.longest_context,
        )
        return paged_attention(queries, self._kv.layers[layer], batch, self._terms[layer])

    def sample(self, logits: Tensor, rows: DeviceSampling) -> tuple[Tensor, Tensor]:
        count = logits.shape[0]
        columns = SamplingColumns(
            temperature=rows.temperature,
            top_k=rows.top_k,
            top_p=rows.top_p,
            min_p=rows.min_p,
            seeds=rows.seeds,
            positions=rows.positions,
            repetition=self._ones[:count],
            frequency=self._zeros[:count],
            presence=self._zeros[:count],
        )
        tokens, status = sample_tokens(logits, self._slots[:count], columns, take=False)
        return tokens, (status == USABLE).long()

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._copier.copy(sources, targets)
