"""The end of attention whose keys were split: the parts of each head, weighed by their softmax totals."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...launch import Launch, next_power_of_2

HEADS = 4
"""Heads of a program."""


def combine_launch(parts: Tensor, stats: Tensor, query_starts: Tensor, out: Tensor) -> Launch:
    """Join float32 `parts` `[num_tokens, num_heads, splits, head_dim]` into `out` `[num_tokens, num_heads, head_dim]`.

    `stats` `[num_tokens, num_heads, 2, splits]` holds each part's largest score, in base 2, and the sum of its weights
    relative to that; a part that saw no key has -inf and is not read. Tokens from `query_starts[-1]` on are no one's.
    """
    num_tokens, num_heads, splits, head_dim = parts.shape
    return Launch(
        kernel=_combine,
        grid=(num_tokens, triton.cdiv(num_heads, HEADS)),
        arguments={
            "parts": parts,
            "stats": stats,
            "last": query_starts[-1:],
            "out": out,
            "num_heads": num_heads,
            "out_stride": out.stride(0),
        },
        constants={"HEAD_DIM": head_dim, "HEAD_PAD": next_power_of_2(head_dim), "SPLITS": splits, "HEADS": HEADS},
        num_warps=min(4, max(1, HEADS * next_power_of_2(head_dim) // 128)),
    )


def combine_reference(parts: Tensor, stats: Tensor) -> Tensor:
    """The same in torch, of all tokens; in float64 where the tensors are."""
    most, totals = stats.unbind(2)
    weights = (most - most.amax(-1, keepdim=True).clamp(min=torch.finfo(most.dtype).min)).exp2()
    sums = (parts.masked_fill(weights[..., None] == 0, 0) * weights[..., None]).sum(2)
    total = (totals * weights).sum(-1, keepdim=True)
    return sums / total.masked_fill(total == 0, 1)


@triton.jit
def _combine(
    parts,
    stats,
    last,
    out,
    num_heads,
    out_stride,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    SPLITS: tl.constexpr,
    HEADS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    if token >= tl.load(last):
        return
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    here = head < num_heads
    piece = (token * num_heads + head) * SPLITS
    split = tl.arange(0, SPLITS)
    place = stats + (piece * 2)[:, None] + split[None, :]
    largest = tl.max(tl.load(place, mask=here[:, None], other=float("-inf")), 1)
    largest = tl.where(largest == float("-inf"), 0.0, largest)
    d = tl.arange(0, HEAD_PAD)
    sums = tl.zeros([HEADS, HEAD_PAD], tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    for i in range(SPLITS):
        most = tl.load(stats + piece * 2 + i, mask=here, other=float("-inf"))
        seen = most > float("-inf")
        weight = tl.exp2(most - largest)
        total += weight * tl.load(stats + piece * 2 + SPLITS + i, mask=here, other=0.0)
        inside = seen[:, None] & (d < HEAD_DIM)[None, :]
        part = tl.load(parts + ((piece + i) * HEAD_DIM)[:, None] + d[None, :], mask=inside, other=0.0)
        sums += weight[:, None] * part
    result = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    target = out + (token * out_stride + head * HEAD_DIM)[:, None] + d[None, :]
    tl.store(target, result.to(out.dtype.element_ty), mask=here[:, None] & (d < HEAD_DIM)[None, :])
