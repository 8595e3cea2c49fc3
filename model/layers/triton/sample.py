"""Choosing tokens on the device: masks, bias, penalties, filters and the draw, one kernel for a whole step.

The law is that of `model/shaping.py` and `model/sampling.py`: the same order, thresholds on the logit, and a draw that
depends on (seed, position) alone. The kernel differs from them in how it rounds sums, so a token can be another one
only where the uniform number falls on the border of two tokens up to float32's rounding.
"""

import attrs
import numpy as np
import torch
from torch import Tensor

from ...launch import Launch, runs_kernels
from ...sampling import SamplingRows, sample
from .sample_kernel import sample_row

IN_PROMPT = 1 << 30
"""The bit of a count that says that the prompt has the token; the others count it in the answer."""
USABLE, BROKEN, RULED_OUT = 0, 1, 2
"""A row's status: drawn; its logits have a NaN or +inf; what the request rules out leaves no token."""
CANDIDATES = 8192
"""Tokens of a row that are kept aside where its filters leave so few; more are looked up in the logits again."""
BLOCK, WARPS = 1024, 16


@attrs.frozen(kw_only=True, eq=False)
class SamplingColumns:
    """What each sequence asks for, on the device: one entry for each slot. As `SamplingRows` has them."""

    temperature: Tensor
    """float64; 0 is greedy."""
    top_k: Tensor
    """int64; below 1: all."""
    top_p: Tensor
    """float64."""
    min_p: Tensor
    """float64."""
    seeds: Tensor
    """int64, the bits of the unsigned seed."""
    positions: Tensor
    """int64: where the token to be drawn will stand."""
    repetition: Tensor
    """float32; 1: no penalty."""
    frequency: Tensor
    """float32; 0: no penalty."""
    presence: Tensor
    counts: Tensor | None = None
    """int32 `[num_slots, vocab_size]`: how often the answer has each token, plus `IN_PROMPT` where a repetition penalty
    looks at the prompt and finds it there. Only rows of slots with a penalty are read. None: no slot has one."""

    @classmethod
    def of(cls, rows: SamplingRows, device: torch.device | str) -> "SamplingColumns":
        """These rows, without penalties, in slots of their own: what `rows.masked` says goes into the bias."""
        plain = torch.zeros(len(rows.seeds), dtype=torch.float32)
        return cls(
            temperature=torch.from_numpy(rows.temperature).to(device),
            top_k=torch.from_numpy(rows.top_k).to(device),
            top_p=torch.from_numpy(rows.top_p).to(device),
            min_p=torch.from_numpy(rows.min_p).to(device),
            seeds=torch.from_numpy(rows.seeds.view(np.int64)).to(device),
            positions=torch.from_numpy(rows.positions).to(device),
            repetition=(plain + 1).to(device),
            frequency=plain.to(device),
            presence=plain.to(device),
        )


@attrs.frozen(kw_only=True, eq=False)
class SparseBias:
    """Numbers that are added to some logits; -inf rules a token out. Row i has the entries
    `[starts[i], starts[i + 1])`, of different tokens."""

    starts: Tensor
    """int32 `[n + 1]`."""
    token_ids: Tensor
    """int32."""
    values: Tensor
    """float32."""


@attrs.frozen(kw_only=True, eq=False)
class AllowedTokens:
    """Masks over the vocabulary, 32 tokens in a word, the lowest bit first: a set bit lets the token stay."""

    rows: Tensor
    """int32 `[n]`: the mask of each row, negative where it has none."""
    words: Tensor
    """int32 `[num_masks, ceil(vocab_size / 32)]`."""


def sample_tokens(
    logits: Tensor,
    slots: Tensor,
    columns: SamplingColumns,
    *,
    bias: SparseBias | None = None,
    allowed: AllowedTokens | None = None,
    take: bool = True,
) -> tuple[Tensor, Tensor]:
    """One token for each row of `logits`, int64 `[n]`, and the rows' status, int32 `[n]`; token 0 where not usable.

    `logits` is float32 `[n, vocab_size]`, rows apart by any stride, and is changed. `slots` int64 `[n]`, contiguous as
    all columns are, says which entry of `columns` each row is. With `take` the counts of slots with a penalty get the
    token that was drawn; each slot may then stand in one row only.
    """
    tokens = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    status = torch.empty(logits.shape[0], dtype=torch.int32, device=logits.device)
    if not runs_kernels(logits):
        sample_tokens_reference(logits, slots, columns, tokens, status, bias=bias, allowed=allowed, take=take)
    elif logits.shape[0]:
        sample_tokens_launch(logits, slots, columns, tokens, status, bias=bias, allowed=allowed, take=take).run()
    return tokens, status


def sample_tokens_reference(
    logits: Tensor,
    slots: Tensor,
    columns: SamplingColumns,
    tokens: Tensor,
    status: Tensor,
    *,
    bias: SparseBias | None,
    allowed: AllowedTokens | None,
    take: bool,
) -> None:
    """The same in torch and numpy, by the sampler of the CPU."""
    for row in range(len(logits)):
        _shape(logits[row], row, int(slots[row]), columns, bias, allowed)
    chosen = {name: getattr(columns, name)[slots].cpu().numpy() for name in ("temperature", "top_k", "top_p", "min_p")}
    seeds = columns.seeds[slots].cpu().numpy().view(np.uint64)
    rows = SamplingRows(seeds=seeds, positions=columns.positions[slots].cpu().numpy(), **chosen)
    largest = logits.amax(-1)
    drawn, usable = sample(logits, rows)
    usable_here = torch.from_numpy(usable).to(logits.device)
    tokens.copy_(torch.from_numpy(drawn).to(logits.device).masked_fill(~usable_here, 0))
    status.copy_(torch.where(usable_here, USABLE, torch.where(largest == float("-inf"), RULED_OUT, BROKEN)))
    if take and columns.counts is not None:
        penalised = usable_here & _penalised(columns, slots)
        columns.counts[slots[penalised], tokens[penalised]] += 1


def _penalised(columns: SamplingColumns, slots: Tensor) -> Tensor:
    return (columns.repetition[slots] != 1) | (columns.frequency[slots] != 0) | (columns.presence[slots] != 0)


def _shape(
    logits: Tensor,
    row: int,
    slot: int,
    columns: SamplingColumns,
    bias: SparseBias | None,
    allowed: AllowedTokens | None,
) -> None:
    """What the request does to one row, in place."""
    if allowed is not None and (mask := int(allowed.rows[row])) >= 0:
        ids = torch.arange(len(logits), device=logits.device)
        logits[(allowed.words[mask, ids // 32] >> (ids % 32) & 1) == 0] = float("-inf")
    if bias is not None:
        some = slice(int(bias.starts[row]), int(bias.starts[row + 1]))
        logits[bias.token_ids[some].long()] += bias.values[some]
    at = torch.tensor([slot], device=logits.device)
    if columns.counts is not None and bool(_penalised(columns, at)):
        counts = columns.counts[slot]
        times = (counts & (IN_PROMPT - 1)).float()
        repetition = columns.repetition[slot]
        repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits.copy_(torch.where(counts != 0, repeated, logits))
        logits -= columns.frequency[slot] * times
        logits -= columns.presence[slot] * (times > 0)


def sample_tokens_launch(
    logits: Tensor,
    slots: Tensor,
    columns: SamplingColumns,
    tokens: Tensor,
    status: Tensor,
    *,
    bias: SparseBias | None,
    allowed: AllowedTokens | None,
    take: bool,
    candidates: int = CANDIDATES,
    block: int = BLOCK,
    num_warps: int = WARPS,
) -> Launch:
    """One program for each row."""
    num_rows, vocab_size = logits.shape
    scratch = torch.empty((num_rows, 2, candidates), dtype=torch.int32, device=logits.device)
    return Launch(
        kernel=sample_row,
        grid=(num_rows,),
        arguments={
            "logits": logits,
            "slots": slots,
            "tokens": tokens,
            "status": status,
            "scratch": scratch,
            "bias_starts": None if bias is None else bias.starts,
            "bias_ids": None if bias is None else bias.token_ids,
            "bias_values": None if bias is None else bias.values,
            "mask_rows": None if allowed is None else allowed.rows,
            "masks": None if allowed is None else allowed.words,
            "mask_stride": 0 if allowed is None else allowed.words.stride(0),
            "vocab_size": vocab_size,
            "logits_stride": logits.stride(0),
            "counts_stride": 0 if columns.counts is None else columns.counts.stride(0),
            **attrs.asdict(columns, recurse=False),
        },
        constants={"TAKE": take, "CANDIDATES": candidates, "BLOCK": block, "IN_PROMPT": IN_PROMPT},
        num_warps=num_warps,
        num_stages=1,
    )
