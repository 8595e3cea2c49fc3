"""Attention of any mix of prefill chunks and decodes over the paged KV cache.

A program takes a tile of query rows that share key heads: `block_m // group` queries of one sequence, each with the
heads of one group. It walks through the keys that any of them sees, `block_n` at a time, and keeps a running softmax.
Where tiles are few and contexts long, the keys of a tile are split over several programs, and a second kernel
(`combine.py`) joins what they found.

Slots outside of a sequence's context are never read. A sequence may have no queries; one without a context gives zeros.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...launch import Launch, capability, next_power_of_2, num_processors, runs_kernels
from .combine import combine_launch
from .e4m3 import decode_e4m3
from .step import AttentionTerms, PagedBatch
from .tiles import MIN_SPLIT_KEYS, Tiles, choose_splits, choose_tiles

SEARCH_SEQUENCES = 256
"""Sequences that a program looks through at once for its own."""


def paged_attention(
    queries: Tensor, kv: Tensor, batch: PagedBatch, terms: AttentionTerms, *, out: Tensor | None = None
) -> Tensor:
    """Outputs `[num_tokens, num_heads, head_dim]` for queries of that shape; those of no sequence are left as they are.

    `kv` is a layer's tensor of `KVTensors`, `[num_blocks, block_size, 2, num_kv_heads, head_dim]`, of the queries'
    dtype or `torch.float8_e4m3fn`. The queries of a token stand together; tokens may be apart by any stride.
    """
    if out is None:
        out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
    if not runs_kernels(queries):
        paged_attention_reference(queries, kv, batch, terms, out)
    elif queries.shape[0]:
        for launch in paged_attention_launches(queries, kv, batch, terms, out):
            launch.run()
    return out


def paged_attention_reference(
    queries: Tensor, kv: Tensor, batch: PagedBatch, terms: AttentionTerms, out: Tensor
) -> None:
    """The same in torch, sequence by sequence; in float64 where the queries are."""
    dtype = torch.float64 if queries.dtype is torch.float64 else torch.float32
    num_kv_heads, group = kv.shape[-2], queries.shape[1] // kv.shape[-2]
    ones = torch.ones(num_kv_heads, device=kv.device)
    scales = [(ones if scale is None else scale).to(dtype) for scale in (terms.key_scale, terms.value_scale)]
    starts = batch.query_starts.tolist()
    for i, context in enumerate(batch.context_lengths.tolist()):
        start, stop = starts[i], starts[i + 1]
        if start == stop:
            continue
        if not context:
            out[start:stop] = 0
            continue
        places = torch.arange(context - (stop - start), context, device=kv.device)[:, None]
        first = 0 if terms.window is None else max(0, int(places[0]) + 1 - terms.window)
        keys_at = torch.arange(first, context, device=kv.device)
        blocks = batch.tables[i, keys_at // kv.shape[1]].long()
        keys, values = (kv[blocks, keys_at % kv.shape[1], j].to(dtype) * scales[j][:, None] for j in range(2))
        query = queries[start:stop].to(dtype).view(stop - start, num_kv_heads, group, -1)
        scores = torch.einsum("qhgd,khd->hgqk", query, keys) * terms.scale
        if terms.soft_cap is not None:
            scores = terms.soft_cap * (scores / terms.soft_cap).tanh()
        hidden = keys_at > places
        if terms.window is not None:
            hidden |= keys_at <= places - terms.window
        scores = scores.masked_fill(hidden, float("-inf"))
        if terms.sinks is not None:
            sink = terms.sinks.to(dtype).view(num_kv_heads, group, 1, 1).expand(-1, -1, stop - start, 1)
            scores = torch.cat((scores, sink), -1)
        weights = scores.softmax(-1)[..., : len(keys_at)]
        out[start:stop] = torch.einsum("hgqk,khd->qhgd", weights, values).reshape(stop - start, -1, kv.shape[-1])


def paged_attention_launches(
    queries: Tensor,
    kv: Tensor,
    batch: PagedBatch,
    terms: AttentionTerms,
    out: Tensor,
    *,
    tiles: Tiles | None = None,
    splits: int | None = None,
    chip: int | None = None,
) -> tuple[Launch, ...]:
    """One launch, or two in this order. `tiles` and `splits` stand in for the table's choice, `chip` for the
    capability of the tensors' device."""
    num_tokens, num_heads, head_dim = queries.shape
    num_kv_heads = kv.shape[-2]
    group, num_sequences = num_heads // num_kv_heads, batch.context_lengths.shape[0]
    chip = chip or capability(queries.device)
    fp8 = 0 if kv.dtype is not torch.float8_e4m3fn else 1 if chip >= 89 else 2
    tiles = tiles or choose_tiles(
        head_dim=head_dim,
        group=group,
        max_query_length=batch.max_query_length,
        element_bytes=queries.element_size(),
        fp8=fp8 > 0,
        chip=chip,
    )
    per_tile = tiles.block_m // group
    one_tile = batch.max_query_length <= per_tile
    num_tiles = num_sequences if one_tile else num_tokens // per_tile + num_sequences
    splits = splits or choose_splits(
        num_tiles=num_tiles,
        num_kv_heads=num_kv_heads,
        max_context_length=batch.max_context_length if terms.window is None else terms.window,
        num_processors=num_processors(queries.device),
    )
    parts = stats = None
    if splits > 1:
        parts = torch.empty((num_tokens, num_heads, splits, head_dim), dtype=torch.float32, device=queries.device)
        stats = torch.empty((num_tokens, num_heads, 2, splits), dtype=torch.float32, device=queries.device)
    arguments = _arguments(queries, kv, batch, terms, out) | {"parts": parts, "stats": stats}
    if fp8:
        arguments["kv"] = kv.view(torch.uint8)
    attend = Launch(
        kernel=_paged_attention,
        grid=(num_tiles, num_kv_heads, splits),
        arguments=arguments,
        constants={
            "GROUP": group,
            "NUM_KV_HEADS": num_kv_heads,
            "HEAD_DIM": head_dim,
            "HEAD_PAD": max(16, next_power_of_2(head_dim)),
            "BLOCK_SIZE": kv.shape[1],
            "WINDOW": terms.window or 0,
            "HAS_CAP": terms.soft_cap is not None,
            "FP8": fp8,
            "ONE_TILE": one_tile,
            "SEARCH": min(SEARCH_SEQUENCES, next_power_of_2(num_sequences)),
            "SPLITS": splits,
            "MIN_KEYS": MIN_SPLIT_KEYS,
            "PRECISION": "ieee" if queries.dtype is torch.float32 else "tf32",
            "BLOCK_M": tiles.block_m,
            "BLOCK_N": tiles.block_n,
        },
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    if parts is None or stats is None:
        return (attend,)
    return attend, combine_launch(parts, stats, batch.query_starts, out)


def _arguments(
    queries: Tensor, kv: Tensor, batch: PagedBatch, terms: AttentionTerms, out: Tensor
) -> dict[str, Tensor | float | None]:
    return {
        "queries": queries,
        "kv": kv,
        "out": out,
        "query_starts": batch.query_starts,
        "context_lengths": batch.context_lengths,
        "tables": batch.tables,
        "sinks": terms.sinks,
        "key_scale": terms.key_scale,
        "value_scale": terms.value_scale,
        "scale": terms.scale,
        "cap": terms.soft_cap or 0.0,
        "num_sequences": batch.context_lengths.shape[0],
        "query_stride": queries.stride(0),
        "out_stride": out.stride(0),
        "table_stride": batch.tables.stride(0),
    }


@triton.jit
def _find_sequence(tile, query_starts, num_sequences, PER_TILE: tl.constexpr, SEARCH: tl.constexpr):
    """The sequence of a tile, and which of its tiles it is.

    Sequence i's tiles begin at `query_starts[i] // PER_TILE + i`: that leaves room for a partial tile in each.
    """
    found = -1
    for first in range(0, num_sequences, SEARCH):
        i = first + tl.arange(0, SEARCH)
        begins = tl.load(query_starts + i, mask=i < num_sequences, other=0) // PER_TILE + i
        found += tl.sum(((begins <= tile) & (i < num_sequences)).to(tl.int32))
    return found, tile - (tl.load(query_starts + found) // PER_TILE + found)


@triton.jit
def _wide(x, FP8: tl.constexpr, dtype: tl.constexpr):
    """Cache entries as numbers of the queries' dtype. `FP8`: 0 if they are such, 1 where the chip knows e4m3, 2 where
    it does not."""
    if FP8 == 1:
        x = x.to(tl.float8e4nv, bitcast=True)
    elif FP8 == 2:
        x = decode_e4m3(x)
    return x.to(dtype)


@triton.jit
def _walk(
    q, cache, table, begin, end, low, position, factor, cap, most, total, sums,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr, FP8: tl.constexpr, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The running softmax of a tile over the keys `[begin, end)`: the largest score in base 2, the sum of the weights,
    and the weighted sum of the values. Keys below `low` are not there."""
    LOG2E: tl.constexpr = 1.4426950408889634
    d = tl.arange(0, q.shape[1])
    for at in range(begin, end, BLOCK_N):
        n = at + tl.arange(0, BLOCK_N)
        there = (n >= low) & (n < end)
        block = tl.load(table + n // BLOCK_SIZE, mask=there, other=0).to(tl.int64)
        slot = (block * BLOCK_SIZE + n % BLOCK_SIZE) * (2 * NUM_KV_HEADS * HEAD_DIM)
        k = tl.load(cache + slot[None, :] + d[:, None], mask=there[None, :] & (d < HEAD_DIM)[:, None], other=0)
        values = cache + NUM_KV_HEADS * HEAD_DIM + slot[:, None] + d[None, :]
        v = tl.load(values, mask=there[:, None] & (d < HEAD_DIM)[None, :], other=0)
        scores = tl.dot(q, _wide(k, FP8, q.dtype), input_precision=PRECISION) * factor
        if HAS_CAP:
            # cap * tanh(scores / cap), by the exponential of a number that is not positive.
            ebb = tl.exp2(tl.abs(scores) * (-2.0 * LOG2E / cap))
            scores = tl.where(scores < 0, -cap, cap) * ((1.0 - ebb) / (1.0 + ebb))
        seen = there[None, :] & (n[None, :] <= position[:, None])
        if WINDOW:
            seen &= n[None, :] > position[:, None] - WINDOW
        scores = tl.where(seen, scores * LOG2E, float("-inf"))
        higher = tl.maximum(most, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(most - base)
        total = total * shrink + tl.sum(weights, 1)
        sums = tl.dot(weights.to(q.dtype), _wide(v, FP8, q.dtype), sums * shrink[:, None], input_precision=PRECISION)
        most = higher
    return most, total, sums


@triton.jit
def _paged_attention(
    queries, kv, out, parts, stats, query_starts, context_lengths, tables, sinks, key_scale, value_scale,
    scale, cap, num_sequences, query_stride, out_stride, table_stride,
    GROUP: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, FP8: tl.constexpr,
    ONE_TILE: tl.constexpr, SEARCH: tl.constexpr, SPLITS: tl.constexpr, MIN_KEYS: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    PER_TILE: tl.constexpr = BLOCK_M // GROUP
    head, split = tl.program_id(1), tl.program_id(2)
    if ONE_TILE:
        sequence, index = tl.program_id(0), 0
    else:
        sequence, index = _find_sequence(tl.program_id(0), query_starts, num_sequences, PER_TILE, SEARCH)
    start = tl.load(query_starts + sequence)
    num_queries = tl.load(query_starts + sequence + 1) - start
    first = index * PER_TILE
    if first >= num_queries:
        return
    computed = tl.load(context_lengths + sequence) - num_queries

    row = tl.arange(0, BLOCK_M)
    query, member = first + row // GROUP, head * GROUP + row % GROUP
    here = (query < num_queries) & (row < PER_TILE * GROUP)
    d = tl.arange(0, HEAD_PAD)
    inside = here[:, None] & (d < HEAD_DIM)[None, :]
    token, place = (start + query).to(tl.int64), member * HEAD_DIM
    q = tl.load(queries + (token * query_stride + place)[:, None] + d[None, :], mask=inside, other=0.0)

    # The keys that any query of the tile sees, [low, high), and the part of them that is this split's.
    high = computed + tl.minimum(first + PER_TILE, num_queries)
    low = tl.maximum(computed + first + 1 - WINDOW, 0) if WINDOW else 0
    begin, end = low // BLOCK_N * BLOCK_N, high
    if SPLITS > 1:
        share = tl.maximum(tl.cdiv(tl.cdiv(high - begin, SPLITS), BLOCK_N) * BLOCK_N, MIN_KEYS)
        begin += split * share
        end = tl.minimum(begin + share, high)

    # A sink is a score of its own, with the value 0; the first split counts it.
    most = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if sinks is not None:
        if split == 0:
            most = tl.load(sinks + member, mask=here, other=0.0) * 1.4426950408889634
            total += 1.0
    factor = scale if key_scale is None else scale * tl.load(key_scale + head)
    most, total, sums = _walk(
        q, kv + head * HEAD_DIM, tables + sequence.to(tl.int64) * table_stride, begin, end, low, computed + query,
        factor, cap, most, total, tl.zeros([BLOCK_M, HEAD_PAD], tl.float32),
        NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, WINDOW, HAS_CAP, FP8, PRECISION, BLOCK_N,
    )  # fmt: skip
    if value_scale is not None:
        sums *= tl.load(value_scale + head)
    if SPLITS > 1:
        piece = (token * (GROUP * NUM_KV_HEADS) + member) * SPLITS
        tl.store(stats + piece * 2 + split, most, mask=here)
        tl.store(stats + piece * 2 + SPLITS + split, total, mask=here)
        tl.store(parts + ((piece + split) * HEAD_DIM)[:, None] + d[None, :], sums, mask=inside)
    else:
        result = sums / tl.where(total == 0.0, 1.0, total)[:, None]
        target = out + (token * out_stride + place)[:, None] + d[None, :]
        tl.store(target, result.to(out.dtype.element_ty), mask=inside)
