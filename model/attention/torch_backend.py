"""The reference backend: plain torch on any device, following the block table.

Keys and values of a context are gathered, row by row, into a scratch buffer that is kept between steps (a fresh one of
this size would cost page faults in every layer), and scaled_dot_product_attention runs over it; it keeps its sums in
float32.

- Sequences that compute one token (decodes) go together, sorted by length and cut into slices that gather a bounded
  number of tokens, so that padding and memory stay bounded. The heads that share a key are packed as query rows.
- Sequences that compute several (prefill chunks) go one by one, up to `QUERY_ROWS` queries at a time, each against no
  more keys than its last query sees.

Padding reads a token of the sequence itself, under a mask, so that nothing of another sequence and no unwritten slot
enters a sum: the mask alone would not keep a NaN out.
"""

from collections.abc import Iterator

import attrs
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..kv import KVTensors
from .interface import AttentionBackend, AttentionShape, Int32Array, Int64Array, StepLayout

QUERY_ROWS = 256
"""Queries of a chunk that are handled together."""
SLICE_TOKENS = 16384
"""Tokens that a slice of decodes gathers, unless one sequence alone has more: a few MiB, within a CPU's cache."""


@attrs.frozen(kw_only=True, eq=False)
class _Decodes:
    """A slice of sequences with one query each."""

    tokens: Tensor
    """Their rows in the flat batch `[n]`."""
    slots: Tensor
    """The rows of the KV tensor to gather `[n * width]`."""
    width: int
    mask: Tensor | None
    """`[n, 1, 1, width]`, 0 or -inf; None where all are equally long."""


@attrs.frozen(kw_only=True, eq=False)
class _Part:
    """Some queries of a chunk: tokens `[start, stop)` of the flat batch against gathered keys `[low, high)`."""

    start: int
    stop: int
    low: int
    high: int
    mask: Tensor
    """`[stop - start, high - low]`."""


@attrs.frozen(kw_only=True, eq=False)
class _Chunk:
    """A sequence with several queries."""

    slots: Tensor
    parts: tuple[_Part, ...]


@attrs.frozen(kw_only=True, eq=False)
class _View:
    """What layers of one group and one window read."""

    decodes: tuple[_Decodes, ...]
    chunks: tuple[_Chunk, ...]


@attrs.frozen(kw_only=True, eq=False)
class TorchMetadata:
    """One step: where to write in each group, and what each kind of layer reads."""

    write_slots: tuple[Tensor, ...]
    views: dict[tuple[int, int | None], _View]


class TorchAttention(AttentionBackend):
    """See the module's docstring."""

    name = "torch"

    def __init__(self, shape: AttentionShape, kv: KVTensors) -> None:
        super().__init__(shape, kv)
        self._kinds = tuple(zip(kv.layer_groups, shape.windows, strict=True))
        """Group and window of each layer: layers alike share their metadata."""
        self._device = kv.tensors[0].device
        self._dtype = kv.tensors[0].dtype
        self._scratch = torch.empty(0)
        self._masks: dict[int | None, Tensor] = {}

    @classmethod
    def unusable(cls, device_type: str) -> str | None:
        return None

    def prepare(self, layout: StepLayout) -> TorchMetadata:
        return TorchMetadata(
            write_slots=tuple(self._to_device(slots) for slots in layout.write_slots),
            views={kind: self._view(layout, *kind) for kind in dict.fromkeys(self._kinds)},
        )

    def write(self, layer: int, keys: Tensor, values: Tensor, metadata: TorchMetadata) -> None:
        rows = torch.stack((keys, values), 1).view(keys.shape[0], -1)
        self.kv.rows(layer).index_copy_(0, metadata.write_slots[self._kinds[layer][0]], rows)

    def attend(self, layer: int, queries: Tensor, metadata: TorchMetadata) -> Tensor:
        view = metadata.views[self._kinds[layer]]
        outputs = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        for decodes in view.decodes:
            self._attend_decodes(layer, queries, outputs, decodes)
        for chunk in view.chunks:
            self._attend_chunk(layer, queries, outputs, chunk)
        return outputs

    def _attend_decodes(self, layer: int, queries: Tensor, outputs: Tensor, decodes: _Decodes) -> None:
        keys, values = self._gather(layer, decodes.slots, decodes.width)
        heads, dim = self.shape.num_kv_heads, self.shape.head_dim
        whole = decodes.tokens.shape[0] == queries.shape[0]  # then they stand in order: see `_decode_slices`
        query = queries if whole else queries.index_select(0, decodes.tokens)
        query = query.reshape(-1, heads, self.shape.num_heads // heads, dim)
        result = scaled_dot_product_attention(query, keys, values, attn_mask=decodes.mask).reshape(
            -1, *queries.shape[1:]
        )
        if whole:
            outputs.copy_(result)
        else:
            outputs.index_copy_(0, decodes.tokens, result)

    def _attend_chunk(self, layer: int, queries: Tensor, outputs: Tensor, chunk: _Chunk) -> None:
        keys, values = self._gather(layer, chunk.slots, chunk.slots.shape[0])
        heads, dim = self.shape.num_kv_heads, self.shape.head_dim
        sharing = self.shape.num_heads // heads
        for part in chunk.parts:
            # Key heads take the batch dimension, so that the queries that share one need no copy of it.
            query = queries[part.start : part.stop].view(-1, heads, sharing, dim).permute(1, 2, 0, 3)
            key = keys[0, :, None, part.low : part.high].expand(-1, sharing, -1, -1)
            value = values[0, :, None, part.low : part.high].expand(-1, sharing, -1, -1)
            result = scaled_dot_product_attention(query, key, value, attn_mask=part.mask)
            outputs[part.start : part.stop].view(-1, heads, sharing, dim).copy_(result.permute(2, 0, 1, 3))

    def _gather(self, layer: int, slots: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Keys and values `[n, num_kv_heads, width, head_dim]` of `n * width` slots, valid until the next gather."""
        rows = self.kv.rows(layer)
        if self._scratch.numel() < slots.shape[0] * rows.shape[1]:
            self._scratch = torch.empty(slots.shape[0] * rows.shape[1] * 5 // 4, dtype=rows.dtype, device=rows.device)
        target = self._scratch[: slots.shape[0] * rows.shape[1]].view(slots.shape[0], -1)
        torch.index_select(rows, 0, slots, out=target)
        gathered = target.view(-1, width, 2, self.shape.num_kv_heads, self.shape.head_dim)
        return gathered[:, :, 0].transpose(1, 2), gathered[:, :, 1].transpose(1, 2)

    def _view(self, layout: StepLayout, group: int, window: int | None) -> _View:
        table = layout.tables[group]
        ends = np.cumsum(layout.query_lengths)
        single = layout.query_lengths == 1
        decodes = tuple(
            self._decodes(table[some], layout.context_lengths[some], ends[some] - 1, window)
            for some in _decode_slices(np.flatnonzero(single), layout.context_lengths, window)
        )
        chunks = tuple(
            self._chunk(table[i], int(layout.context_lengths[i]), int(layout.query_lengths[i]), int(ends[i]), window)
            for i in np.flatnonzero(~single)
        )
        return _View(decodes=decodes, chunks=chunks)

    def _decodes(self, tables: Int32Array, contexts: Int64Array, tokens: Int64Array, window: int | None) -> _Decodes:
        lengths = contexts if window is None else np.minimum(contexts, window)
        width = int(lengths.max())
        offsets = np.arange(width)
        padding = offsets >= lengths[:, None]
        positions = (contexts - lengths)[:, None] + np.where(padding, 0, offsets)
        mask = None
        if padding.any():
            mask = torch.zeros(padding.shape, dtype=self._dtype).masked_fill_(torch.from_numpy(padding), float("-inf"))
            mask = mask[:, None, None].to(self._device)
        slots = self._slots(np.take_along_axis(tables, positions // self.kv.block_size, 1), positions)
        return _Decodes(tokens=self._to_device(tokens), slots=slots, width=width, mask=mask)

    def _chunk(self, table: Int32Array, context: int, queries: int, end: int, window: int | None) -> _Chunk:
        """`end` is where the sequence's tokens end in the flat batch."""
        computed = context - queries
        first = 0 if window is None else max(0, computed + 1 - window)
        positions = np.arange(first, context)
        parts = []
        for start in range(0, queries, QUERY_ROWS):
            stop = min(start + QUERY_ROWS, queries)
            low = 0 if window is None else max(0, computed + start + 1 - window - first)
            high = computed + stop - first
            mask = self._causal_mask(stop - start, high - low, window)
            at = end - queries
            parts.append(_Part(start=at + start, stop=at + stop, low=low, high=high, mask=mask))
        return _Chunk(slots=self._slots(table[positions // self.kv.block_size], positions), parts=tuple(parts))

    def _slots(self, blocks: Int32Array, positions: Int64Array) -> Tensor:
        if blocks.size and int(blocks.min()) < 0:
            raise AssertionError("a position that a sequence must read has no block in its table")
        slots = blocks.astype(np.int64) * self.kv.block_size + positions % self.kv.block_size
        return self._to_device(slots.reshape(-1))

    def _causal_mask(self, queries: int, keys: int, window: int | None) -> Tensor:
        """`[queries, keys]`, 0 or -inf, for queries that are the last of the keys: a corner of a mask that is kept."""
        mask = self._masks.get(window)
        if mask is None or mask.shape[1] < keys:
            width = max(QUERY_ROWS, 1 << (keys - 1).bit_length())
            last = torch.arange(width - QUERY_ROWS, width)[:, None]
            key = torch.arange(width)
            hidden = key > last if window is None else (key > last) | (key <= last - window)
            mask = torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, float("-inf")).to(self._device)
            self._masks[window] = mask
        return mask[QUERY_ROWS - queries :, mask.shape[1] - keys :]

    def _to_device(self, array: Int64Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)


def _decode_slices(sequences: Int64Array, contexts: Int64Array, window: int | None) -> Iterator[Int64Array]:
    """Cut sequences into slices of like lengths that gather at most `SLICE_TOKENS` each, padding included.

    A single slice keeps the order of the batch.
    """
    if not sequences.size:
        return
    lengths = contexts[sequences] if window is None else np.minimum(contexts[sequences], window)
    longest, count = int(lengths.max()), len(sequences)
    if longest * count <= SLICE_TOKENS and longest * count <= 1.5 * int(lengths.sum()) + 1024:
        yield sequences
        return
    order = np.argsort(-lengths, kind="stable")
    lengths, sequences = lengths[order], sequences[order]
    start = 0
    while start < count:
        widest = int(lengths[start])
        stop = min(count, start + max(1, SLICE_TOKENS // widest))
        # Lengths fall: keep those of at least half the widest, so that no more than half is padding.
        stop = min(stop, start + max(1, int(np.count_nonzero(lengths[start:stop] * 2 >= widest))))
        yield sequences[start:stop]
        start = stop
