"""What a step on the device is made of, between its matrix products; and the plain torch version of it.

Every function but the last can be captured in a graph: shapes follow from the arguments' shapes, nothing is decided by
what a tensor holds, nothing is read back. Slots below 0 are nobody's: what would be written there is dropped.
"""

from collections.abc import Sequence
from typing import Protocol

import attrs
import torch
from torch import Tensor
from torch.nn.functional import silu

from ..attention.interface import AttentionShape
from ..kv import KVTensors
from ..layers.rms_norm import rms_norm
from ..layers.rotary import Rotary
from .sampling import DeviceSampling, sample_on_device


@attrs.frozen(kw_only=True, eq=False)
class DeviceLayout:
    """Where a step's tokens are: `attention/interface.py`'s StepLayout on the device. A sequence of context 0 is empty:
    its tokens attend to nothing."""

    query_starts: Tensor
    """int32 `[num_sequences + 1]`: sequence i computes tokens `[starts[i], starts[i + 1])` of the flat batch."""
    context_lengths: Tensor
    """int32 `[num_sequences]`: with this step's tokens."""
    tables: tuple[Tensor, ...]
    """For each KV group int32 `[num_sequences, width]`."""
    slots: tuple[Tensor, ...]
    """For each KV group int64 `[num_tokens]`, the row of `KVTensors.rows`; below 0: nowhere."""
    rows: Tensor
    """int64 `[num_tokens]`: each token's sequence."""
    positions: Tensor
    """int64 `[num_tokens]`."""
    most_queries: int
    """Tokens of the sequence that computes most."""
    longest_context: int
    """No context is longer."""


@attrs.frozen(kw_only=True, eq=False)
class HeadNorms:
    """The norms over each head of queries and keys, where a model has them."""

    queries: Tensor
    keys: Tensor
    eps: float


class Kernels(Protocol):
    """One implementation, bound to a model's shape, its rotary positions and its KV tensors."""

    name: str

    def add_norm(self, hidden: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """`residual + hidden` (None: `hidden` alone), normalised, and as it is. May write into its arguments."""

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """`silu(gate) * up` of `[num_tokens, 2 * n]`."""

    def turns(self, positions: Tensor) -> object:
        """What `rotate_and_write` needs of the tokens' positions, once a step."""

    def rotate_and_write(
        self, layer: int, qkv: Tensor, norms: HeadNorms | None, turns: object, slots: tuple[Tensor, ...]
    ) -> Tensor:
        """Queries `[num_tokens, num_heads, head_dim]`, normalised and turned; keys, so treated, and values are in their
        slots. `qkv` is `[num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]`."""

    def attend(self, layer: int, queries: Tensor, layout: DeviceLayout) -> Tensor:
        """Outputs shaped like the queries; zeros or anything finite for tokens of empty sequences."""

    def sample(self, logits: Tensor, rows: DeviceSampling) -> tuple[Tensor, Tensor]:
        """A token for each row of float32 logits, which may be changed, and whether they could be used; both int64."""

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks in all layers; every source is read before any target is written. Not in a graph."""


class TorchKernels:
    """Plain torch, on any device: what the others are compared with. Attention gathers whole tables: for tests, and for
    short contexts."""

    name = "torch"

    def __init__(self, shape: AttentionShape, kv: KVTensors, rotary: Rotary, dtype: torch.dtype) -> None:
        """`dtype` is what the model computes in."""
        if kv.num_spare_blocks < 1:
            raise AssertionError("slots that are nobody's need a spare block to be written to")
        self._shape, self._kv, self._rotary, self._dtype = shape, kv, rotary, dtype
        self._nowhere = kv.num_blocks * kv.block_size

    def add_norm(self, hidden: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        whole = hidden if residual is None else residual + hidden
        return rms_norm(whole, weight, eps), whole

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return silu(gate).mul_(up)

    def turns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self._rotary.tables(positions, self._dtype)

    def rotate_and_write(
        self, layer: int, qkv: Tensor, norms: HeadNorms | None, turns: object, slots: tuple[Tensor, ...]
    ) -> Tensor:
        heads, kv_heads = self._shape.num_heads, self._shape.num_kv_heads
        qkv = qkv.view(-1, heads + 2 * kv_heads, self._shape.head_dim)
        turning, values = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if norms is not None:
            queries = rms_norm(turning[:, :heads], norms.queries, norms.eps)
            turning = torch.cat((queries, rms_norm(turning[:, heads:], norms.keys, norms.eps)), 1)
        turned = self._rotary.rotate(turning, turns)  # type: ignore[arg-type]
        own = slots[self._kv.layer_groups[layer]]
        pairs = torch.stack((turned[:, heads:], values), 1)
        self._kv.store(layer, torch.where(own < 0, self._nowhere, own), pairs)
        return turned[:, :heads]

    def attend(self, layer: int, queries: Tensor, layout: DeviceLayout) -> Tensor:
        """Each token for itself against all that its sequence's table names."""
        kv_heads, dim = self._shape.num_kv_heads, self._shape.head_dim
        table = layout.tables[self._kv.layer_groups[layer]].index_select(0, layout.rows)
        offsets = torch.arange(self._kv.block_size, device=queries.device)
        slots = (table.clamp(min=0).long()[:, :, None] * self._kv.block_size + offsets).flatten(1)
        places = torch.arange(slots.shape[1], device=queries.device)
        # An empty sequence's token sees nothing, wherever it claims to be.
        seen = torch.minimum(layout.positions + 1, layout.context_lengths.index_select(0, layout.rows))[:, None]
        visible = places < seen
        window = self._shape.windows[layer]
        if window is not None:
            visible &= places >= seen - window
        gathered = self._kv.load(layer, slots.flatten()).view(*slots.shape, 2, kv_heads, dim)
        gathered = torch.where(visible[:, :, None, None, None], gathered, 0)  # what was never written may be NaN
        keys, values = gathered.float().unbind(2)
        grouped = queries.float().view(len(queries), kv_heads, -1, dim)
        scores = torch.einsum("thgd,tnhd->thgn", grouped, keys) * dim**-0.5
        scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
        scores = torch.where(visible.any(-1)[:, None, None, None], scores, 0)
        mixed = torch.einsum("thgn,tnhd->thgd", scores.softmax(-1), values)
        return mixed.reshape(queries.shape).to(queries.dtype)

    def sample(self, logits: Tensor, rows: DeviceSampling) -> tuple[Tensor, Tensor]:
        return sample_on_device(logits, rows)

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._kv.copy_blocks(sources, targets)
